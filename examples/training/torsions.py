"""Torsional profiles of a model and of GFN2-xTB, each relaxed on its own.

Usage: ``python torsions.py --model default --out results/torsions.csv``

Three molecules are turned about one bond: butane, which the shipped model was trained on,
phenethylamine, which it was not, and biphenyl, whose two rings have a bond between them as in no
training molecule. Published values are written beside them. Needs tblite:
``pip install mlff-triton[train]``.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from pathlib import Path

from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import Calculator
from ase.constraints import FixInternals
from ase.optimize import BFGS
from geometry import moving_side
from structures import read_structures

from mlff_triton import TensorNetCalculator
from mlff_triton.units import EV_TO_KCAL_PER_MOL

COLUMNS = ("molecule", "method", "degrees", "energy_kcal_mol")
CM_TO_KCAL_PER_MOL = 2.85914e-3  # of 1/cm
STEP = 15  # degrees
CENTRAL_BOND = 1.49  # Å, of biphenyl at the start
# W. A. Herrebout et al., J. Phys. Chem. 1995, 99, 578: coefficients from spectra of gaseous butane
BUTANE = (242, 43, 1146, 40, -6, -36)  # 1/cm
# S. Tsuzuki et al., J. Chem. Phys. 1999, 110, 2858: MP2/cc-pVQZ barriers of biphenyl
BIPHENYL = {0: 2.28, 90: 2.13}  # kcal/mol above the minimum

Row = tuple[str, str, int, str]


def profile(
    atoms: Atoms, torsion: tuple[int, ...], side: list[int], calculator: Calculator, end: int
) -> Iterator[tuple[int, float]]:
    """Yield angles in degrees and relaxed energies in eV, from ``end`` down to 0.

    The molecule turns there and back, and the lower energy of the two counts: other parts of it
    flip at an angle that depends on where it comes from.

    Parameters
    ----------
    atoms : ase.Atoms
        Molecule of N atoms, which is not changed.
    torsion : tuple of int
        Four atoms of the torsion that is held.
    side : list of int
        Atoms that turn with the last atom of the torsion.
    calculator : Calculator
        Method that relaxes the molecule at each angle.
    end : int
        Largest angle in degrees; smaller ones follow in steps of 15 degrees.
    """
    atoms = atoms.copy()
    atoms.calc = calculator
    angles = range(end, -1, -STEP)
    lowest = dict.fromkeys(angles, math.inf)
    for degrees in (*angles, *reversed(angles)):
        atoms.set_constraint()
        atoms.set_dihedral(*torsion, degrees, indices=side)
        atoms.set_constraint(FixInternals(dihedrals_deg=[[degrees, list(torsion)]], epsilon=1e-6))
        BFGS(atoms, logfile=None).run(fmax=0.005, steps=500)
        lowest[degrees] = min(lowest[degrees], atoms.get_potential_energy())
    yield from lowest.items()


def biphenyl() -> tuple[Atoms, tuple[int, ...], list[int]]:
    """Build two rings of benzene with a bond between them, its torsion, and the second ring."""
    ring = molecule("C6H6")
    first, ortho = 0, 1  # carbon atoms
    hydrogen = min(range(6, 12), key=lambda atom: ring.get_distance(first, atom))
    ring.positions -= ring.positions[first]
    ring.rotate(ring.positions[hydrogen], "x")
    del ring[hydrogen]
    n = len(ring)
    other = ring.copy()
    other.positions = [CENTRAL_BOND, 0, 0] - other.positions
    return ring + other, (ortho, first, n + first, n + ortho), list(range(n, 2 * n))


def molecules(path: Path) -> Iterator[tuple[str, Atoms, tuple[int, ...], list[int], int]]:
    """Yield name, atoms, torsion, turning atoms and largest angle of each molecule."""
    structures = {s.name: s for s in reversed(read_structures(path))}  # the first conformer
    for name in ("butane", "phenethylamine"):
        s = structures[name]
        torsion = next(t for t in s.torsions if all(s.numbers[list(t)] > 1))
        side = moving_side(s, *torsion[1:3]).tolist()
        yield name, Atoms(s.numbers, s.positions), torsion, side, 180
    yield "biphenyl", *biphenyl(), 90


def gfn2() -> Calculator:
    """Return a calculator of GFN2-xTB."""
    from tblite.ase import TBLite

    return TBLite(method="GFN2-xTB", verbosity=0)


def published() -> Iterator[Row]:
    """Yield what spectroscopy says of butane, and MP2 of biphenyl."""
    for degrees in range(180, -1, -STEP):
        turned = math.radians(180 - degrees)  # from the trans form
        energy = sum(v / 2 * (1 - math.cos(n * turned)) for n, v in enumerate(BUTANE, start=1))
        yield "butane", "published", degrees, f"{energy * CM_TO_KCAL_PER_MOL:.3f}"
    for degrees, energy in BIPHENYL.items():
        yield "biphenyl", "published", degrees, f"{energy:.3f}"


def main() -> None:
    """Compute all profiles, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = Path(__file__).parent
    parser.add_argument("--structures", type=Path, default=here / "structures.xyz")
    parser.add_argument("--model", default="default", help="checkpoint or name")
    parser.add_argument("--out", type=Path, default=here / "results" / "torsions.csv")
    args = parser.parse_args()
    rows: list[Row] = []
    for name, atoms, torsion, side, end in molecules(args.structures):
        methods = {
            "model": TensorNetCalculator(args.model, dtype="float64"),
            "gfn2": gfn2(),
        }
        for method, calculator in methods.items():
            found = list(profile(atoms, torsion, side, calculator, end))
            lowest = min(energy for _, energy in found)
            rows += [
                (name, method, degrees, f"{(energy - lowest) * EV_TO_KCAL_PER_MOL:.3f}")
                for degrees, energy in found
            ]
            print(name, method, *(row[3] for row in rows[-len(found) :]))
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows([*rows, *published()])


if __name__ == "__main__":
    main()
