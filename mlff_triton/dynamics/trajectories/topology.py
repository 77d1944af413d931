"""The structure that viewers open together with a DCD or XTC trajectory."""

from __future__ import annotations

import io
from pathlib import Path

import ase.io
from ase import Atoms

from mlff_triton._common.files import replace_file


def write_topology(path: str | Path, atoms: Atoms) -> None:
    """Write a structure as PDB, which VMD, MDAnalysis and mdtraj open together with a trajectory.

    Parameters
    ----------
    path : str or path
        The file, which is replaced.
    atoms : Atoms
        The structure. Its names of atoms and residues are kept if it was read from PDB.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    text = io.StringIO()
    if "residuenumbers" in atoms.arrays:
        atoms = atoms.copy()
        atoms.arrays["residuenumbers"] %= 10_000  # columns of the format
    ase.io.write(text, atoms, format="proteindatabank")
    replace_file(Path(path), text.getvalue().encode())
