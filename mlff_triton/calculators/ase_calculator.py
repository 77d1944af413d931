"""TensorNet as an ASE calculator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.data import atomic_masses
from numpy.typing import NDArray

from mlff_triton._common.devices import dtype_name
from mlff_triton._common.text import short_repr
from mlff_triton.calculators._fixed_atoms import moving_masses
from mlff_triton.calculators._plausibility import contact_limits
from mlff_triton.calculators._session import Session, System
from mlff_triton.calculators._total_charge import UnusedInfo, charge_of
from mlff_triton.engine.batch import Batch, same
from mlff_triton.engine.motion import Dynamics
from mlff_triton.errors import InputError
from mlff_triton.model.prediction import Ensemble, Prediction, check_has_uncertainty
from mlff_triton.model.tensornet import TensorNet

UNCERTAINTY = "uncertainty"
WASTE = 1.5
"""Largest ratio of the mesh points of a batch to those of its systems alone."""
MOST_MESH_POINTS = 1 << 27
"""Largest number of mesh points of a batch of several systems: 1 GiB in float64."""
VOIGT = [0, 4, 8, 5, 2, 1]  # xx, yy, zz, yz, xz, xy in a 3x3 matrix row by row


class TensorNetCalculator(Calculator):
    """Energies, forces and stresses of a TensorNet for any ASE workflow.

    The total charge is read from ``atoms.info["charge"]``, an integer or an array of one; without
    it, it is the sum of the initial charges of atoms, which must be near an integer. The neighbor
    list is reused until an atom has moved by half the skin. Results are reproducible bit for bit.

    Parameters
    ----------
    model : str, path, TensorNet or Ensemble
        ``"default"``, ``"default-charged"``, another name or an address as in
        `mlff_triton.load_model`, a checkpoint of mlff_triton, TorchMD-NET or MatGL, or a loaded
        model, which is copied.
    device : str
        ``"auto"`` (a GPU if there is one), ``"cpu"``, ``"cuda"``...
    dtype : {"float32", "float64"} or torch.dtype
        Precision of the network. Energies are summed in float64 either way.
    backend : str
        ``"auto"``, or one of the backends of `mlff_triton.engine.engine.Engine`.
    skin : float or "auto"
        Additional radius of the neighbor list in Å. Larger skins give longer lists, which are
        rebuilt less often. By default, it suits the device and the number of atoms. Results do not
        depend on it.
    coulomb : {"all-pairs", "reaction-field", "pme"}, optional
        Coulomb energy of a model with partial charges, as for `mlff_triton.load_model`; by default,
        the model's own.
    dispersion : str, optional
        Correction to add to all results for a model that was trained without dispersion: "d3bj:"
        and the functional of its training data, such as "d3bj:pbe". It needs the extra
        ``dispersion``; see `mlff_triton.dispersion.correction.Dispersion`.

    Notes
    -----
    Units are ASE's: eV, eV/Å, eV/Å^3, e, e Å. ``stress`` needs a periodic cell. Models with partial
    charges, such as a TensorNet2, also give ``charges`` and, without a cell, ``dipole``, which for
    charged molecules is about their center of mass. Models that know their uncertainty also give
    ``uncertainty``, the expected error of the force on each atom in eV/Å, in ``results`` and by
    ``get_property``. Any thread may ask for properties, and gets those of its own atoms.
    Calculators can be copied and pickled. ``parameters`` holds the model, a hash of its weights,
    the dtype, the device and the dispersion, if any. With dispersion, ``energies`` are computed
    only if asked for.

    Raises
    ------
    MlffTritonError
        If the model, the device or the atoms are invalid. There is a subclass for each reason.

    Examples
    --------
    >>> from ase.build import molecule
    >>> atoms = molecule("CH3CH2OH")
    >>> atoms.calc = TensorNetCalculator()
    >>> atoms.get_forces().shape
    (9, 3)
    """

    implemented_properties = [  # noqa: RUF012 (declared by ASE)
        "energy",
        "free_energy",
        "forces",
        "stress",
        "energies",
    ]

    def __init__(
        self,
        model: str | Path | TensorNet | Ensemble = "default",
        *,
        device: str = "auto",
        dtype: str | torch.dtype = "float32",
        backend: str = "auto",
        skin: float | str = "auto",
        coulomb: str | None = None,
        dispersion: str | None = None,
    ) -> None:
        super().__init__()
        self.session = Session(model, device, dtype, backend, skin, coulomb, dispersion)
        engine = self.session.engine
        if engine.has_charges:
            self.implemented_properties = [*self.implemented_properties, "charges", "dipole"]
        if engine.has_uncertainty:
            self.implemented_properties = [*self.implemented_properties, UNCERTAINTY]
        name = str(model) if isinstance(model, (str, Path)) else type(model).__name__
        if coulomb is not None:
            self.parameters.update(coulomb=coulomb)
        self.parameters.update(
            model=name,
            weights=engine.weights,
            dtype=dtype_name(engine.dtype),
            device=str(engine.device),
        )
        if self.session.dispersion is not None:
            self.parameters.update(dispersion=self.session.dispersion.method)
        self._last: Atoms | None = None
        self._computed: Batch | None = None
        self._unused_info = UnusedInfo()

    def set(self, **kwargs: Any) -> dict[str, Any]:
        """Refuse to change an option, because a change would have no effect on results.

        ASE's own method would only note the new value among the parameters.

        Raises
        ------
        InputError
            If a value is not that of ``parameters``.
        """
        for name, value in kwargs.items():
            if name not in self.parameters or value != self.parameters[name]:
                raise InputError(
                    f"{short_repr(name)} of a calculator cannot be changed: make a new "
                    f"TensorNetCalculator with {name}={short_repr(value)}"
                )
        return {}

    def get_spin_polarized(self) -> bool:
        """Return False, with the warning of ASE.

        Without this method, ASE stores one in the calculator, which then refers to itself: its
        tables, up to 400 MB in float64, stay in memory until Python collects garbage.
        """
        return bool(self._deprecated_get_spin_polarized())

    def get_property(
        self, name: str, atoms: Atoms | None = None, allow_calculation: bool = True
    ) -> Any:
        """Return a property of the atoms, even if other threads ask for theirs at the same time."""
        if name == UNCERTAINTY:
            check_has_uncertainty(self.session.engine.has_uncertainty)
        with self.session.engine.lock:
            return super().get_property(name, atoms, allow_calculation)

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:  # noqa: ARG002 (ASE's)
        """Return what has changed since the last calculation.

        The total charge counts as initial charges, and periodic directions as the cell. A cell
        without periodic directions does not count. ASE's own comparison takes ten times as long, as
        it compares every array that atoms may have.
        """
        # Copies by copy.copy share a session.
        if self.atoms is None or self.session.last is not self._computed:
            return list(all_changes)
        try:
            changes = self.session.changes(_system_of(atoms))
        except InputError:  # raised again by the calculation
            return list(all_changes)
        return ["initial_charges" if name == "charge" else name for name in changes]

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),  # noqa: ARG002 (ASE's)
    ) -> None:
        """Fill ``self.results``; ASE calls this when something has changed."""
        current = self.atoms if atoms is None else atoms
        if current is None:
            raise InputError("there are no atoms yet: pass atoms, or call a method of theirs")
        with self.session.engine.lock:
            self.results = {}
            charge = charge_of(current)
            self._unused_info.check(current.info, charge)
            own = self.atoms = self._last = _copied(current, self._last)
            own.info["charge"] = charge
            # The session keeps the positions of this copy, and compares the next ones with them.
            of_atoms = self.session.dispersion is None or "energies" in properties
            prediction = self.session.evaluate(_system_of(own), of_atoms=of_atoms)
            self._computed = self.session.last
            self.results = _results([own], prediction, of_atoms)[0]

    def calculate_many(
        self, images: Sequence[Atoms], max_batch_atoms: int = 8192
    ) -> list[dict[str, Any]]:
        """Compute many systems in batches.

        Parameters
        ----------
        images : sequence of Atoms
            Systems of any size and periodicity.
        max_batch_atoms : int
            Largest number of atoms per batch. A larger system is a batch of its own.

        Returns
        -------
        list of dict
            A results dictionary as in ASE for each system, in order; with dispersion, without
            ``energies``. The calculator's cached results do not change.
        """
        results: list[dict[str, Any]] = []
        of_atoms = self.session.dispersion is None
        for chunk in self._chunks(list(images), max_batch_atoms):
            prediction = self.session.evaluate_many(self._systems(chunk))
            results += _results(chunk, prediction, of_atoms)
        return results

    def maker(self, device: str) -> Callable[[], TensorNetCalculator]:
        """Return a function that makes this calculator on another device, and can be pickled."""
        model, _, dtype, backend, _, skin = self.session.engine.recipe
        correction = self.session.dispersion
        return partial(
            TensorNetCalculator,
            model,
            device=device,
            dtype=dtype,
            backend=backend,
            skin=skin,
            dispersion=None if correction is None else correction.method,
        )

    def check_many(self, systems: Sequence[Atoms]) -> None:
        """Only raise and warn as `dynamics` does for invalid or implausible systems."""
        self.session.batch_of(self._systems(systems))

    def dynamics(self, systems: Sequence[Atoms]) -> Dynamics | None:
        """Prepare systems to be moved without ASE, as `mlff_triton.dynamics.Simulation` does.

        Parameters
        ----------
        systems : sequence of Atoms
            Systems of any size and periodicity. Atoms that they fix do not move.

        Returns
        -------
        Dynamics or None
            None if the backend is "torch" or "exact", the model is an ensemble, or there is
            dispersion, which the engine's own steps do not compute.
        """
        if self.session.dispersion is not None:
            return None
        masses = moving_masses(systems)
        batch = self.session.batch_of(self._systems(systems))
        return self.session.engine.dynamics(batch, masses, contact_limits(batch.numbers))

    def _chunks(self, images: list[Atoms], max_atoms: int) -> list[list[Atoms]]:
        """Return consecutive groups of at most ``max_atoms`` atoms (or one larger system).

        A group ends before its common mesh would be much too fine for some cells, and before meshes
        fill the memory. A slab with a mesh is a group of its own.
        """
        groups: list[list[Atoms]] = []
        size = max_atoms + 1
        alone, longest = 0, np.zeros(3)
        for atoms in images:
            size += len(atoms)
            lengths = atoms.cell.lengths()
            points = self._mesh_points(atoms, lengths)
            last = groups[-1][-1] if groups else atoms
            is_full = size > max_atoms or self._has_own_mesh(atoms) or self._has_own_mesh(last)
            if alone and not is_full:
                both = self._mesh_points(atoms, np.maximum(longest, lengths))
                together = both * (len(groups[-1]) + 1)
                is_full = together > min(MOST_MESH_POINTS, WASTE * (alone + points))
            if is_full:
                groups.append([])
                size, alone, longest = len(atoms), 0, np.zeros(3)
            groups[-1].append(atoms)
            alone, longest = alone + points, np.maximum(longest, lengths)
        return groups

    def _has_own_mesh(self, atoms: Atoms) -> bool:
        """Return True if a system, being a slab, shares its mesh with no other one."""
        return self.session.engine.uses_mesh and bool(atoms.pbc.sum() == 2)

    def _mesh_points(self, atoms: Atoms, lengths: NDArray[np.float64]) -> int:
        """Return the number of mesh points of a system among others with the longest vectors [3].

        It is 0 for models or systems without meshes.
        """
        if not self.session.engine.uses_mesh or not atoms.pbc.all() or atoms.cell.rank < 3:
            return 0
        return self.session.engine.mesh_points(lengths)

    def _systems(self, images: Sequence[Atoms]) -> list[System]:
        systems = [_system_of(atoms) for atoms in images]
        for atoms, system in zip(images, systems, strict=True):
            self._unused_info.check(atoms.info, system.charge)
        return systems


def _copied(atoms: Atoms, last: Atoms | None) -> Atoms:
    """Return a copy of the atoms without their charge: the last copy, updated, if it fits.

    This costs less than a new one.
    """
    if last is None or not same(last.numbers, atoms.numbers):
        copy: Atoms = atoms.copy()
        return copy
    last.arrays["positions"][:] = atoms.arrays["positions"]
    last.cell.array[:] = atoms.cell.array
    last.pbc[:] = atoms.pbc
    return last


def _system_of(atoms: Atoms) -> System:
    if len(atoms) == 0:
        raise InputError("there are no atoms: give at least one")
    charge = charge_of(atoms)
    return System(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, charge)


def _results(images: list[Atoms], prediction: Prediction, of_atoms: bool) -> list[dict[str, Any]]:
    """Split a prediction into results dictionaries as in ASE, with separate float64 arrays.

    They include energies of atoms if these are known.
    """
    energy = prediction.energy.numpy()
    virial = prediction.virial.double().numpy()
    forces = prediction.forces.double().numpy()
    energies = prediction.atom_energies.numpy()
    charges = None if prediction.charges is None else prediction.charges.double().numpy()
    known = prediction.uncertainty
    uncertainty = None if known is None else known.double().numpy()
    alone = len(images) == 1
    results: list[dict[str, Any]] = []
    start = 0
    for k, atoms in enumerate(images):
        stop = start + len(atoms)
        entry = {
            "energy": float(energy[k]),
            "free_energy": float(energy[k]),
            "forces": forces if alone else forces[start:stop].copy(),
        }
        if of_atoms:
            entry["energies"] = energies if alone else energies[start:stop].copy()
        if uncertainty is not None:
            entry[UNCERTAINTY] = uncertainty[start:stop].copy()
        if charges is not None:
            own = entry["charges"] = charges[start:stop].copy()
            if not atoms.pbc.any():
                entry["dipole"] = own @ (atoms.positions - _center_of_mass(atoms))
        if atoms.pbc.any():
            volume = _volume(atoms.cell.array)
            if volume > 0:
                entry["stress"] = (virial[k] + virial[k].T).ravel()[VOIGT] / (2 * volume)
        results.append(entry)
        start = stop
    return results


def _center_of_mass(atoms: Atoms) -> NDArray[np.float64]:
    """Return the center of mass in Å from standard masses; other masses may change unnoticed."""
    masses = atomic_masses[atoms.numbers]
    return np.asarray(masses @ atoms.positions / masses.sum())


def _volume(cell: NDArray[np.float64]) -> float:
    """Return the volume in Å^3, several times as fast as NumPy's determinant."""
    a, b, c = cell.tolist()
    x, y, z = (a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3))
    return float(abs(c[0] * x + c[1] * y + c[2] * z))
