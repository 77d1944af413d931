"""Energies and forces of GFN2-xTB, computed with tblite.

C. Bannwarth, S. Ehlert and S. Grimme, J. Chem. Theory Comput. 2019, 15, 1652,
https://doi.org/10.1021/acs.jctc.8b01176. Needs tblite: ``pip install mlff-triton[train]``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from geometry import FloatArray, IntArray
from numpy.typing import NDArray
from tblite.interface import Calculator

from mlff_triton.units import BOHR, HARTREE

MAX_FORCE = 25.0  # eV/Å
UNPAIRED = {1: 1, 6: 2, 7: 3, 8: 2, 16: 2}  # unpaired electrons of the free atoms


class Gfn2:
    """GFN2-xTB energies (eV) and forces (eV/Å) of one molecule.

    Parameters
    ----------
    numbers : int [N]
        Atomic numbers.
    charge, unpaired : int
        Total charge, and number of unpaired electrons.
    accuracy : float
        Convergence thresholds relative to the defaults of tblite.
    restart : bool
        If True, start from the previous density. Labels do not, so that they depend on the geometry
        alone.
    """

    def __init__(
        self,
        numbers: IntArray,
        charge: int,
        unpaired: int = 0,
        accuracy: float = 1.0,
        restart: bool = False,
    ) -> None:
        placeholder = 3.0 * np.arange(3 * len(numbers)).reshape(-1, 3)
        self._calculator = Calculator("GFN2-xTB", numbers, placeholder, charge, unpaired)
        self._calculator.set("verbosity", 0)
        self._calculator.set("accuracy", accuracy)
        self._restart = restart
        self._previous: Any = None

    def __call__(self, positions: FloatArray) -> tuple[float, FloatArray]:
        """Evaluate one geometry in Å; raise RuntimeError if it does not converge."""
        self._calculator.update(positions / BOHR)
        result = self._calculator.singlepoint(self._previous)
        self._previous = result if self._restart else None
        return float(result["energy"]) * HARTREE, -result["gradient"] * (HARTREE / BOHR)


def label(numbers: IntArray, charge: int, frames: list[FloatArray]) -> dict[str, NDArray[Any]]:
    """Label the frames, dropping those that do not converge or have excessive forces.

    Returns
    -------
    dict
        ``positions`` float32 [C, N, 3], ``energy`` float64 [C], ``forces`` float32 [C, N, 3].
    """
    model = Gfn2(numbers, charge)
    kept = []
    for frame in frames:
        x = frame.astype(np.float32)  # label exactly the coordinates that are stored
        with contextlib.suppress(RuntimeError):
            energy, forces = model(x.astype(float))
            if np.linalg.norm(forces, axis=1).max() <= MAX_FORCE:
                kept.append((x, energy, forces))
    return {
        "positions": np.array([k[0] for k in kept], np.float32).reshape(-1, len(numbers), 3),
        "energy": np.array([k[1] for k in kept], float),
        "forces": np.array([k[2] for k in kept], np.float32).reshape(-1, len(numbers), 3),
    }


def free_atoms() -> dict[str, NDArray[Any]]:
    """Compute the energies of the free atoms, which are stored for reference only."""
    energies = [
        Gfn2(np.array([z]), 0, unpaired)(np.zeros((1, 3)))[0] for z, unpaired in UNPAIRED.items()
    ]
    return {"atom_numbers": np.array(list(UNPAIRED)), "atom_energies": np.array(energies)}
