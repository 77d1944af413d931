"""Steps of the engine in loops for CPUs."""

from __future__ import annotations

import torch

from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.engine.charged_step import Operators
from mlff_triton.engine.cpu_dynamics import CpuDynamics
from mlff_triton.engine.cpu_part import CpuPart
from mlff_triton.engine.cpu_state import CpuModel, CpuState
from mlff_triton.engine.host_steps import HostSteps
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.part import reach
from mlff_triton.model.prediction import ExternalField, Prediction
from mlff_triton.neighbors.box import FloatArray


class CpuSteps(HostSteps):
    """Steps of one model in loops for CPUs.

    Parameters
    ----------
    operators : Operators
        Loops for CPUs.
    parameters : Parameters
        The model.
    dtype : torch.dtype
        Precision of the network.
    skin : float
        Å.
    """

    def __init__(
        self, operators: Operators, parameters: Parameters, dtype: torch.dtype, skin: float
    ) -> None:
        super().__init__(torch.device("cpu"))
        self._model = CpuModel(operators, parameters, skin, dtype)
        self._state = CpuState(self._model)

    @property
    def n_builds(self) -> int:
        """Number of reusable neighbor lists built so far."""
        return self._state.neighbors.n_builds

    def check_species(self, numbers: IntArray) -> None:
        """Raise `UnknownElementError` unless the model knows all atomic numbers, int64 [N]."""
        self._model.parameters.species(torch.from_numpy(numbers))

    @property
    def reach(self) -> float:
        """Distance in Å up to which atoms influence the energy of an atom."""
        return reach(self._model.parameters.config)

    @property
    def exchange_reach(self) -> float:
        """Distance in Å up to which parts with an exchange need ghosts."""
        return self._model.parameters.cutoff

    @property
    def tensor_reach(self) -> float:
        """Distance in Å up to which parts with an exchange need tensors of ghosts."""
        return self._model.parameters.network_cutoff

    def part(self, charge: float) -> CpuPart:
        """Return the steps of a part of a system with a total charge in elementary charges."""
        return CpuPart(self._model, charge)

    def dynamics(
        self, batch: Batch, masses: FloatArray, limits: FloatArray | None = None
    ) -> CpuDynamics:
        """Return the integrator of a batch; see `mlff_triton.engine.motion.Dynamics`."""
        self.check_species(batch.numbers)
        return CpuDynamics(self._model, batch, masses, limits)

    def evaluate(self, batch: Batch) -> Prediction:
        """Compute energies, forces and virials of a batch."""
        return self._state.evaluate(batch).prediction

    def evaluate_in_field(self, batch: Batch, field: ExternalField) -> Prediction:
        """Compute a batch whose charges are in a field."""
        field.prepare()
        prediction = self._state.evaluate(batch, field).prediction
        field.finish()
        return prediction
