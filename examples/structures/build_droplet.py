"""Script that made the shipped structure: the solute of a solvated box and the nearest waters.

    python build_droplet.py alanine_dipeptide_explicit.pdb alanine_dipeptide_water.xyz

The input was OpenMM's test system of that name (MIT license, from
https://github.com/openmm/openmm/tree/master/wrappers/python/tests/systems). Any PDB file works if
its waters are named HOH and their atoms are in the order O, H, H.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io import read, write

N_WATERS = 48


def droplet(box: Atoms, n_waters: int = N_WATERS) -> Atoms:
    """Return the solute and its nearest waters, centered, with whole molecules and no cell.

    Parameters
    ----------
    box : Atoms
        A periodic box. Its array ``residuenames`` distinguishes solute and waters.
    n_waters : int
        Number of waters to keep, by the distance of the oxygen from the nearest solute atom.
    """
    is_water = box.get_array("residuenames") == "HOH"
    solute = np.flatnonzero(~is_water)
    waters = np.flatnonzero(is_water).reshape(-1, 3)
    reach = [box.get_distances(oxygen, solute, mic=True).min() for oxygen in waters[:, 0]]
    nearest = waters[np.argsort(reach, kind="stable")[:n_waters]]

    # Move each molecule as a whole to the periodic image nearest to the first atom of the solute.
    anchor = solute[0]
    positions = [box.positions[anchor] + box.get_distances(anchor, solute, mic=True, vector=True)]
    for molecule in nearest:
        oxygen = box.positions[anchor] + box.get_distance(anchor, molecule[0], True, True)
        positions.append(oxygen + box.get_distances(molecule[0], molecule, mic=True, vector=True))

    kept = Atoms(box.numbers[np.concatenate([solute, nearest.ravel()])], np.concatenate(positions))
    kept.positions -= kept.get_center_of_mass()
    return kept


def main() -> None:
    """Read the box, cut out the droplet and write it as extended XYZ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("box", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    atoms = droplet(read(arguments.box))
    atoms.info["description"] = f"alanine dipeptide (Ac-Ala-NHMe) and its {N_WATERS} nearest waters"
    write(arguments.output, atoms, format="extxyz")


if __name__ == "__main__":
    main()
