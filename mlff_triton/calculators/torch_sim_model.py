"""TensorNet as a model of TorchSim: batches of systems that stay on the GPU.

The interface is `torch_sim.models.interface.ModelInterface` of torch-sim-atomistic.
"""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlff_triton._common.remedies import install
from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.calculators._plausibility import Plausibility
from mlff_triton.calculators._session import Session
from mlff_triton.calculators._total_charge import UnusedInfoWarning, unused_info
from mlff_triton.engine.batch import Batch
from mlff_triton.errors import InputError
from mlff_triton.model.prediction import Ensemble, Prediction
from mlff_triton.model.tensornet import TensorNet

SUPPORTED = "0.3", "0.7"
"""First version of TorchSim that is supported, and first one that is not."""
CHARGES = "total_charge", "charge"
"""Names that TorchSim recommends for the total charge of each system, the preferred one first."""


def _check_version() -> None:
    """Raise `InputError` unless TorchSim is installed in a version that is supported."""
    first, end = SUPPORTED
    try:
        found = version("torch-sim-atomistic")
    except PackageNotFoundError as error:
        raise InputError(f"TorchSim is missing: {install('torch-sim')}") from error
    if not _release(first) <= _release(found) < _release(end):
        raise InputError(
            f"TorchSim {found} is not supported: pip install 'torch-sim-atomistic>={first},<{end}'"
        )


def _release(name: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in name.split(".")[:2])


_check_version()

from torch_sim.models.interface import ModelInterface  # noqa: E402 (its version is checked first)
from torch_sim.state import SimState  # noqa: E402


class TorchSimModel(ModelInterface):
    """Energies, forces and stresses of a TensorNet for simulations with TorchSim.

    On a GPU with Triton, a call queues kernels and does not wait for them. Only the first call for
    new atoms waits: atomic numbers, ``system_idx``, ``pbc`` and charge are recognized by their
    tensors, so calls with a clone of the state wait, too. See `mlff_triton.Engine.queue` for when
    results are NaN. On other devices, each call computes its results by way of the CPU.

    The total charge is ``state.total_charge`` or ``state.charge``, [n_systems], if present, and 0
    otherwise. Positions need not be wrapped into the cell.

    Parameters
    ----------
    model : str, path, TensorNet or Ensemble
        ``"default"``, ``"default-charged"``, another name or an address as in
        `mlff_triton.load_model`, a checkpoint of mlff_triton, TorchMD-NET or MatGL, or a loaded
        model, which is copied.
    device : str or torch.device
        ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"``...
    dtype : {"float32", "float64"} or torch.dtype
        Precision of the network. Energies are summed in float64 either way.
    state_dtype : torch.dtype, optional
        Dtype of states that TorchSim makes for this model; by default, the network's dtype. Results
        have the dtype of the state's positions.
    backend : str
        ``"auto"``, or one of the backends of `mlff_triton.Engine`.
    skin : float or "auto"
        Additional radius of the neighbor list in Å. Larger skins give longer lists, which are
        rebuilt less often. By default, it suits the device and the number of atoms.
    compute_forces, compute_stress : bool
        Results to return; both may be set later. They take no additional time.
    dispersion : str, optional
        Correction to add, as for `TensorNetCalculator`. Each call then waits for the GPU.

    Notes
    -----
    Versions 0.3 to 0.6 of torch-sim-atomistic are supported. Units are eV, eV/Å and eV/Å^3. The
    stress of a system that is not periodic or has no volume is NaN, as in TorchSim's own results
    that lack it. Results carry no gradients. Memory grows with the number of atoms, which
    ``memory_scales_with`` tells TorchSim's autobatchers.

    Raises
    ------
    InputError
        If TorchSim is missing, its version is not supported, or an option is invalid.
    BackendError
        If the requested device or backend cannot serve the model.

    Examples
    --------
    >>> import torch_sim
    >>> from ase.build import molecule
    >>> model = TorchSimModel(device="cpu")
    >>> state = torch_sim.io.atoms_to_state([molecule("H2O")] * 2, model.device, model.dtype)
    >>> model(state)["forces"].shape
    torch.Size([6, 3])
    """

    @with_own_settings
    def __init__(
        self,
        model: str | Path | TensorNet | Ensemble = "default",
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        state_dtype: torch.dtype | None = None,
        backend: str = "auto",
        skin: float | str = "auto",
        compute_forces: bool = True,
        compute_stress: bool = True,
        dispersion: str | None = None,
    ) -> None:
        super().__init__()
        session = Session(model, device, dtype, backend, skin, dispersion=dispersion)
        self.engine, self._dispersion = session.engine, session.dispersion
        self._device = self.engine.device
        self._dtype = self.engine.dtype if state_dtype is None else state_dtype
        if not self._dtype.is_floating_point:
            raise InputError(f"state_dtype={state_dtype} is not a floating-point type")
        self._compute_forces = compute_forces
        self._compute_stress = compute_stress
        self._memory_scales_with = "n_atoms"
        self._plausibility: Plausibility | None = session.plausibility

    def _set_compute_forces(self, value: bool) -> None:
        self._compute_forces = value

    def _set_compute_stress(self, value: bool) -> None:
        self._compute_stress = value

    compute_forces = ModelInterface.compute_forces.setter(_set_compute_forces)
    compute_stress = ModelInterface.compute_stress.setter(_set_compute_stress)

    @with_own_settings
    def forward(self, state: SimState | dict[str, Any]) -> dict[str, Tensor]:
        """Compute energies, forces and stresses of all systems of a state.

        Parameters
        ----------
        state : SimState or dict
            A state of TorchSim on the model's device, or a dictionary of its fields.

        Returns
        -------
        dict of str to Tensor
            ``energy`` [n_systems], and, unless they are switched off, ``forces`` [n_atoms, 3] and
            ``stress`` [n_systems, 3, 3]; also ``charges`` [n_atoms], if the model predicts partial
            charges, and ``uncertainty`` [n_atoms], the expected error of the force on each atom, if
            it knows that. New tensors on the model's device.

        Raises
        ------
        InputError, UnknownElementError, OverlappingAtomsError, BackendError, SimulationError
            As for `mlff_triton.Engine.queue`; also if atoms of the first state are far too close.

        Warns
        -----
        UnknownChemistryWarning
            Once, if a system of the first state differs from all that the model was trained for, or
            the model expects a larger error in the force on an atom than usual.
        """
        if isinstance(state, dict):
            state = SimState(masses=torch.ones_like(state["positions"][:, 0]), **state)
        given = (
            state.atomic_numbers,
            state.positions,
            state.cell.mT,
            state.pbc,
            state.system_idx,
            _charge(state),
        )
        checks = self._plausibility
        if checks is not None or self._dispersion is not None:
            batch = Batch.of(*given)
        if checks is not None:
            for system in batch.systems():
                checks.check_new(system)
            _warn_of_spin(getattr(state, "spin", None))
        prediction = self.engine.queue(*given)
        if checks is not None:
            checks.judge(batch, prediction)
            self._plausibility = None
        if self._dispersion is not None:
            prediction = self._dispersion.added(batch, prediction, of_atoms=False)
        return self._results(prediction, state)

    def _results(self, prediction: Prediction, state: SimState) -> dict[str, Tensor]:
        """Return the results that are asked for or known, in the dtype of the state."""
        results = {"energy": prediction.energy}
        if self.compute_forces:
            results["forces"] = prediction.forces
        if self.compute_stress:
            results["stress"] = _stress(prediction.virial, state.cell, state.pbc)
        if prediction.charges is not None:
            results["charges"] = prediction.charges
        if prediction.uncertainty is not None:
            results["uncertainty"] = prediction.uncertainty
        return {name: tensor.to(state.positions.dtype) for name, tensor in results.items()}


def _charge(state: SimState) -> Tensor | None:
    """Return the total charge of each system, or None if the state has none."""
    found = (getattr(state, name, None) for name in CHARGES)
    return next((charge for charge in found if charge is not None), None)


def _warn_of_spin(spin: Tensor | None) -> None:
    """Warn if the spins of systems, [n_systems], are not 0 or 1, which models do not know."""
    for value in [] if spin is None else spin.detach().cpu().ravel().tolist():
        text = unused_info({"spin": value}, 0)
        if text:
            warnings.warn(text, UnusedInfoWarning, stacklevel=3)
            return


def _stress(virial: Tensor, cell: Tensor, pbc: Tensor | bool) -> Tensor:
    """Divide virials [B, 3, 3] by the volumes of cells [B, 3, 3].

    The result is NaN for systems without a volume, or without periodic directions ``pbc``.
    """
    a, b, c = cell.detach().to(virial).unbind(-1)
    volume = (a * torch.linalg.cross(b, c)).sum(-1).abs()[:, None, None]
    stress: Tensor = (virial + virial.mT) / (2 * volume)
    is_periodic = torch.as_tensor(pbc, device=cell.device).broadcast_to(len(cell), 3).any(-1)
    return stress.masked_fill((volume == 0) | ~is_periodic[:, None, None], torch.nan)
