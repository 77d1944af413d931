"""Steps of one model on one device, as the engine calls them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.engine.motion import Dynamics
from mlff_triton.engine.part import PartStep
from mlff_triton.errors import InputError
from mlff_triton.model.prediction import ExternalField, Prediction
from mlff_triton.neighbors.box import FloatArray

CANNOT_PREPARE = "only single models on a GPU can be prepared: use compute"

ResidentStep = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""A step of a resident system: positions [N, 3] and the cell [3, 3], or None if it is unchanged, to
the energy, float64 [] on the CPU, and forces [N, 3] on the computing device, of the positions'
dtype."""


class Units(NamedTuple):
    """Units of the program that a resident system serves.

    Attributes
    ----------
    length : float
        The program's unit of length in Å.
    energy : float
        The program's unit of energy in eV.
    """

    length: float = 1.0
    energy: float = 1.0


class TensorBatch(NamedTuple):
    """Systems as tensors of another program; see `mlff_triton.engine.engine.Engine.queue`.

    Attributes
    ----------
    numbers : int [N]
        Atomic numbers.
    positions : float [N, 3]
        Å.
    cell : float [B, 3, 3]
        Lattice vectors (rows) in Å.
    pbc : bool, bool [3] or bool [B, 3]
        Periodic directions.
    system : int [N]
        System of each atom, ascending from 0 without gaps.
    charge : float [B], optional
        Total charge of each system in elementary charges.
    """

    numbers: Tensor
    positions: Tensor
    cell: Tensor
    pbc: Tensor | bool
    system: Tensor
    charge: Tensor | None

    def check_shapes(self) -> None:
        """Raise `InputError` unless all shapes agree."""
        n_atoms, n_systems = len(self.positions), len(self.cell)
        expected: dict[str, list[int]] = {
            "numbers": [n_atoms],
            "positions": [n_atoms, 3],
            "cell": [n_systems, 3, 3],
            "system": [n_atoms],
        }
        if self.charge is not None:
            expected["charge"] = [n_systems]
        for name, shape in expected.items():
            found = list(getattr(self, name).shape)
            if found != shape:
                raise InputError(
                    f"{name} has shape {found}: {n_atoms} atoms in {n_systems} systems need {shape}"
                )


class Steps(ABC):
    """Steps of one model on one device, with the neighbor lists that they reuse."""

    @property
    @abstractmethod
    def n_builds(self) -> int:
        """Number of neighbor lists built so far."""

    @abstractmethod
    def check_species(self, numbers: IntArray) -> None:
        """Raise `UnknownElementError` unless the model knows all atomic numbers, int64 [N]."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> Prediction:
        """Compute energies, forces and virials of a batch; return them on the CPU."""

    @abstractmethod
    def evaluate_in_field(self, batch: Batch, field: ExternalField) -> Prediction:
        """Compute a batch whose charges are in a field; return the results on the CPU.

        All work that the field has queued on a GPU is then done.
        """

    @property
    def contact_reach(self) -> float:
        """Distance in Å up to which steps report contacts of atoms; 0 if they do not."""
        return 0.0

    def watch(self, batch: Batch, limits: FloatArray) -> tuple[Prediction, bool]:  # noqa: ARG002
        """Compute a batch, and return True if it has contacts; see `Engine.watch`."""
        return self.evaluate(batch.with_positions(batch.positions)), False

    @abstractmethod
    def prepare(self, batch: Batch) -> Callable[[], Prediction]:
        """Return a function that queues the step of a batch, for measurements.

        The function neither waits nor checks the status. The next step of a batch of this size
        overwrites the tensors it returns.

        Raises
        ------
        BackendError
            If steps are not queued on a GPU.
        """

    @abstractmethod
    def resident(self, batch: Batch, units: Units) -> ResidentStep:
        """Return the step of one system, whose positions may differ at each call."""

    @property
    @abstractmethod
    def reach(self) -> float:
        """Distance in Å up to which atoms influence the energy of an atom."""

    @property
    def exchange_reach(self) -> float | None:
        """Distance in Å up to which parts with an exchange need ghosts, or None."""
        return None

    @property
    def tensor_reach(self) -> float:
        """Distance in Å up to which parts with an exchange need tensors of ghosts."""
        return math.inf

    @abstractmethod
    def part(self, charge: float) -> PartStep:
        """Return the steps of a part of a system with a total charge in elementary charges."""

    def queue(self, batch: TensorBatch) -> Prediction | None:  # noqa: ARG002
        """Queue the step of a batch on a GPU, and return its results, or None without a GPU."""
        return None

    def dynamics(
        self,
        batch: Batch,  # noqa: ARG002
        masses: FloatArray,  # noqa: ARG002
        limits: FloatArray | None = None,  # noqa: ARG002
    ) -> Dynamics | None:
        """Return the integrator of a batch, or None if PyTorch computes the forces.

        Parameters
        ----------
        batch : Batch
            The systems.
        masses : float64 [N]
            amu.
        limits : float64 [N], optional
            Length of each atom in Å: two atoms are too close below the sum of their lengths.
        """
        return None
