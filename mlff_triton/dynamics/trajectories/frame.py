"""One frame of a trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from ase import Atoms

from mlff_triton.calculators._fixed_atoms import fixed_atoms

Array = npt.NDArray[np.float64]

LABELS = ("atomtypes", "residuenames", "residuenumbers")  # arrays that ASE reads from PDB and GRO


def labels_of(atoms: Atoms) -> dict[str, npt.NDArray[Any]]:
    """Return the names of atoms and residues that a structure has, without a copy."""
    return {name: atoms.arrays[name] for name in LABELS if name in atoms.arrays}


@dataclass(frozen=True, eq=False)
class Frame:
    """State of a system at one time step. The frame owns its arrays: nobody changes them.

    Attributes
    ----------
    step : int
        Number of time steps done.
    time_ps : float
        Time in ps.
    stage : str
        Label of the stage.
    energy : float
        Potential energy in eV.
    numbers : int64 [N]
        Atomic numbers.
    positions : float64 [N, 3]
        Positions in Å, as simulated.
    momenta : float64 [N, 3]
        Momenta in the units of ASE.
    forces : float64 [N, 3]
        The model's forces in eV/Å, also those on atoms that do not move.
    cell : float64 [3, 3]
        Lattice vectors as rows, in Å; zeros without a cell.
    pbc : bool [3]
        Periodic directions.
    masses : float64 [N] or None
        Masses in u, if they are not those of the elements.
    fixed : bool [N] or None
        Atoms that do not move, if there are any.
    uncertainty : float64 [N] or None
        Expected error of the force on each atom in eV/Å, if the model knows it.
    labels : dict of array [N]
        Names of atoms and residues for extended XYZ, as words or integers: some of `LABELS`.
    info : dict
        More about the structure, such as its charge, for extended XYZ.
    """

    step: int
    time_ps: float
    stage: str
    energy: float
    numbers: npt.NDArray[np.int64]
    positions: Array
    momenta: Array
    forces: Array
    cell: Array
    pbc: npt.NDArray[np.bool_]
    masses: Array | None = None
    fixed: npt.NDArray[np.bool_] | None = None
    uncertainty: Array | None = None
    labels: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, atoms: Atoms, step: int, time_ps: float, stage: str, energy: float, forces: Array
    ) -> Frame:
        """Copy the state of a structure; parameters have the names of the attributes."""
        fixed = fixed_atoms(atoms)
        return cls(
            step=step,
            time_ps=time_ps,
            stage=stage,
            energy=energy,
            numbers=atoms.get_atomic_numbers(),
            positions=atoms.get_positions(),
            momenta=atoms.get_momenta(),
            forces=forces.copy(),
            cell=atoms.cell.array.copy(),
            pbc=atoms.get_pbc(),
            masses=atoms.get_masses() if atoms.has("masses") else None,
            fixed=fixed if fixed.any() else None,
            labels=labels_of(atoms),
            info=dict(atoms.info),
        )

    @property
    def nbytes(self) -> int:
        """Memory of the arrays in bytes."""
        arrays = (self.numbers, self.positions, self.momenta, self.forces)
        some = (self.masses, self.uncertainty)
        return sum(array.nbytes for array in (*arrays, *some) if array is not None)
