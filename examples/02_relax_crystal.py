"""Relaxation of a crystal, atoms and cell, and a fit of its equation of state.

Usage: ``python 02_relax_crystal.py --model TensorNet-MatPES-PBE-v2025.1-PES``

The model must be a potential for crystals, such as a MatGL checkpoint, which is a folder with
``model.json`` and ``state.pt``. The shipped model knows molecules only. The crystal is MgO by
default. For silicon, add ``--name Si --structure diamond --lattice-constant 5.4``.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.eos import EquationOfState
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS
from ase.units import GPa

from mlff_triton import TensorNetCalculator

# SciPy warns if the matrix logarithms of the filter are off by 1e-12.
warnings.filterwarnings("ignore", "logm result may be inaccurate")


def relax(crystal: Atoms, fmax: float = 1e-3) -> None:
    """Minimize the energy over positions and cell until no force exceeds ``fmax`` (eV/Å)."""
    optimizer = BFGS(FrechetCellFilter(crystal), logfile=None)
    if not optimizer.run(fmax=fmax, steps=500):
        sys.exit("the crystal did not relax in 500 steps: start from a better --lattice-constant")


def strained(crystal: Atoms, scale: float) -> Atoms:
    """Return a copy of the crystal with all lengths scaled."""
    copy = crystal.copy()
    copy.set_cell(scale * crystal.cell, scale_atoms=True)
    return copy


def main() -> None:
    """Relax and strain the crystal, fit the energies and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="checkpoint of a potential for crystals")
    parser.add_argument("--name", default="MgO", help="chemical formula")
    parser.add_argument(
        "--structure", default="rocksalt", help="crystal structure, as named by ase.build.bulk"
    )
    parser.add_argument("--lattice-constant", type=float, default=4.4, help="initial value, Å")
    parser.add_argument(
        "--repeat", type=int, default=1, help="number of cubic cells along each axis"
    )
    parser.add_argument("--points", type=int, default=7, help="number of volumes in the fit")
    args = parser.parse_args()
    if args.model is None:
        sys.exit("give the checkpoint of a potential for crystals: --model PATH")

    crystal = bulk(args.name, args.structure, a=args.lattice_constant, cubic=True) * args.repeat
    crystal.rattle(0.05, seed=0)  # so that there is something to relax
    crystal.calc = TensorNetCalculator(args.model, dtype="float64")
    relax(crystal)

    images = [strained(crystal, scale) for scale in np.linspace(0.98, 1.02, args.points)]
    volumes = [image.get_volume() / len(image) for image in images]
    results = crystal.calc.calculate_many(images)
    energies = [result["energy"] / len(crystal) for result in results]
    for volume, energy in zip(volumes, energies, strict=True):
        print(f"{volume:8.4f} Å³/atom  {energy:10.6f} eV/atom")

    v0, _, bulk_modulus = EquationOfState(volumes, energies, eos="birchmurnaghan").fit()
    print(f"lattice constant    {crystal.cell.lengths().mean() / args.repeat:.4f} Å")
    print(f"equilibrium volume  {v0:.4f} Å³/atom")
    print(f"bulk modulus        {bulk_modulus / GPa:.1f} GPa")


if __name__ == "__main__":
    main()
