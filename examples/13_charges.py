"""Partial charges and dipoles of acetic acid and of its anion, by a TensorNet2.

Usage: ``python 13_charges.py [--model default-charged] [--steps 100]``
"""

import argparse
import sys

from ase import units
from ase.build import molecule
from ase.optimize import BFGS

from mlff_triton import TensorNetCalculator

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="default-charged", help="name or checkpoint of a TensorNet2")
parser.add_argument("--steps", type=int, default=100, help="most steps of each relaxation")
options = parser.parse_args()

acid = molecule("CH3COOH")
oxygens = [atom.index for atom in acid if atom.symbol == "O"]
proton = next(
    atom.index
    for atom in acid
    if atom.symbol == "H" and acid.get_distances(atom.index, oxygens).min() < 1.1
)
anion = acid.copy()
del anion[proton]
anion.info["charge"] = -1  # the total charge, which the calculator reads there

for name, atoms in (("acetic acid", acid), ("acetate", anion)):
    atoms.calc = TensorNetCalculator(options.model, dtype="float64")
    if "charges" not in atoms.calc.implemented_properties:
        sys.exit(f"{options.model} predicts no charges: take another --model")
    if not BFGS(atoms, logfile=None).run(fmax=0.02, steps=options.steps):
        sys.exit(f"{name} did not relax in {options.steps} steps: take more --steps")
    charges = atoms.get_charges()
    print(f"{name}: total charge {charges.sum():+.3f} e")
    print(", ".join(f"{s} {q:+.3f}" for s, q in zip(atoms.symbols, charges, strict=True)))
    dipole = (atoms.get_dipole_moment() ** 2).sum() ** 0.5 / units.Debye
    print(f"dipole {dipole:.2f} D, about the center of mass")

difference = anion.get_potential_energy() - acid.get_potential_energy()
print(f"the acid without its proton: {difference * units.mol / units.kcal:+.1f} kcal/mol")
