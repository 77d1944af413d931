"""TensorNet as an ASE calculator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from numpy.typing import NDArray

from mlff_triton.calculators._session import Session
from mlff_triton.engine.batch import same
from mlff_triton.errors import InputError
from mlff_triton.model.prediction import Ensemble, Prediction
from mlff_triton.model.tensornet import TensorNet

MAX_BATCH_ATOMS = 8192
VOIGT = [0, 4, 8, 5, 2, 1]  # xx, yy, zz, yz, xz, xy of nine numbers row by row


class TensorNetCalculator(Calculator):
    """Energies, forces and stresses of a TensorNet for any ASE workflow.

    The total charge is read from ``atoms.info["charge"]`` (0 if absent). The neighbor list is
    reused while the atoms stay within half a skin. Results are reproducible bit for bit.

    Parameters
    ----------
    model : str, path, TensorNet or Ensemble
        ``"default"`` (the shipped model), another shipped name, a checkpoint of mlff_triton,
        TorchMD-NET or MatGL, or a loaded model, which is copied.
    device : str
        ``"auto"`` (a GPU where there is one), ``"cpu"``, ``"cuda"``...
    dtype : {"float32", "float64"}
        Precision of the network; energies add up in float64 either way.
    backend : str
        ``"auto"``, or what computes: see `mlff_triton.engine.engine.Engine`.
    skin : float
        Verlet skin in Å; larger means rarer, longer lists.

    Notes
    -----
    Units are ASE's: eV, eV/Å, eV/Å^3. ``stress`` needs a periodic cell.

    Raises
    ------
    MlffTritonError
        A subclass that says what is wrong with the model, the device or the atoms.

    Examples
    --------
    >>> from ase.build import molecule
    >>> atoms = molecule("CH3CH2OH")
    >>> atoms.calc = TensorNetCalculator()
    >>> atoms.get_forces().shape
    (9, 3)
    """

    implemented_properties = [  # noqa: RUF012 (ASE declares it of the instance)
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
        dtype: str = "float32",
        backend: str = "auto",
        skin: float = 0.5,
    ) -> None:
        super().__init__()
        self.session = Session(model, device, dtype, backend, skin)
        self._last: Atoms | None = None

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:  # noqa: ARG002 (ASE's)
        """What changed since the last calculation; a new total charge counts as a change."""
        last = self.atoms
        if last is None or len(last) != len(atoms):
            return list(all_changes)
        # ASE's own comparison goes through every array that atoms may have: ten times slower.
        unchanged = {
            "positions": same(last.positions, atoms.positions),
            "numbers": same(last.numbers, atoms.numbers),
            "cell": same(last.cell.array, atoms.cell.array),
            "pbc": same(last.pbc, atoms.pbc),
            "initial_charges": _charge(last) == _charge(atoms),
        }
        return [name for name, is_same in unchanged.items() if not is_same]

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),  # noqa: ARG002 (ASE's)
        system_changes: Sequence[str] = tuple(all_changes),  # noqa: ARG002 (ASE's)
    ) -> None:
        """Fill ``self.results``; called by ASE when something changed."""
        current = self.atoms if atoms is None else atoms
        if current is None:
            raise InputError("there are no atoms yet: ask through atoms, or give them")
        self.results = {}
        self.atoms = self._last = _copied(current, self._last)
        self.results = _results([current], self.session.evaluate(*_arguments(current)))[0]

    def calculate_many(self, images: Sequence[Atoms]) -> list[dict[str, Any]]:
        """Results of many systems, computed in batches.

        Parameters
        ----------
        images : sequence of Atoms
            Systems of any size and periodicity.

        Returns
        -------
        list of dict
            One of ASE's results dictionaries for each system, in order. The calculator's own cache
            stays as it is.
        """
        results: list[dict[str, Any]] = []
        for chunk in _chunks(list(images)):
            prediction = self.session.evaluate_many([_arguments(atoms) for atoms in chunk])
            results += _results(chunk, prediction)
        return results


def _copied(atoms: Atoms, last: Atoms | None) -> Atoms:
    """A copy of the atoms; the one before takes over what has moved, as copying costs more."""
    if last is None or not same(last.numbers, atoms.numbers):
        copy: Atoms = atoms.copy()
        return copy
    last.arrays["positions"][:] = atoms.arrays["positions"]
    last.cell.array[:] = atoms.cell.array
    last.pbc[:] = atoms.pbc
    last.info["charge"] = _charge(atoms)
    return last


def _charge(atoms: Atoms) -> Any:
    return atoms.info.get("charge", 0)


def _arguments(atoms: Atoms) -> tuple[Any, Any, Any, Any, Any]:
    if len(atoms) == 0:
        raise InputError("there are no atoms: give at least one")
    return atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc, _charge(atoms)


def _results(images: list[Atoms], prediction: Prediction) -> list[dict[str, Any]]:
    """Split a prediction into ASE's dictionaries, as float64 arrays of their own."""
    energy = prediction.energy.numpy()
    virial = prediction.virial.double().numpy()
    forces = prediction.forces.double().numpy()
    energies = prediction.atom_energies.numpy()
    alone = len(images) == 1
    results: list[dict[str, Any]] = []
    start = 0
    for k, atoms in enumerate(images):
        stop = start + len(atoms)
        entry = {
            "energy": float(energy[k]),
            "free_energy": float(energy[k]),
            "forces": forces if alone else forces[start:stop].copy(),
            "energies": energies if alone else energies[start:stop].copy(),
        }
        if atoms.pbc.any():
            volume = _volume(atoms.cell.array)
            if volume > 0:
                entry["stress"] = (virial[k] + virial[k].T).ravel()[VOIGT] / (2 * volume)
        results.append(entry)
        start = stop
    return results


def _volume(cell: NDArray[np.float64]) -> float:
    """Å^3; for nine numbers NumPy takes several times as long."""
    a, b, c = cell.tolist()
    x, y, z = (a[i - 2] * b[i - 1] - a[i - 1] * b[i - 2] for i in range(3))
    return float(abs(c[0] * x + c[1] * y + c[2] * z))


def _chunks(images: list[Atoms]) -> list[list[Atoms]]:
    """Consecutive groups of at most `MAX_BATCH_ATOMS` atoms (or one larger system)."""
    groups: list[list[Atoms]] = []
    size = MAX_BATCH_ATOMS + 1
    for atoms in images:
        size += len(atoms)
        if size > MAX_BATCH_ATOMS:
            groups.append([])
            size = len(atoms)
        groups[-1].append(atoms)
    return groups
