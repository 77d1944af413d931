"""Make frames of a molecule with energies and forces by density functional theory.

Usage: ``python make_frames.py --out frames.xyz``

The molecule is formaldoxime, CH2=N-OH, whose bonds the shipped model has never seen. Dynamics at
700 K with GFN2-xTB visits the geometries, as it is much faster than the functional, and PBE0 with
the basis def2-SVP labels a frame every 40 fs. The notebook ``training.ipynb`` reads the result.
Needs PySCF and tblite: ``pip install pyscf tblite``. 500 frames take half an hour on two cores; set
``OMP_NUM_THREADS=1``.
"""

from __future__ import annotations

import argparse
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from ase import Atoms, units
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from ase.optimize import BFGS
from pyscf import dft, gto
from tblite.ase import TBLite

from mlff_triton.units import BOHR, HARTREE

TEMPERATURE = 700.0  # K
STEPS = 80  # of 0.5 fs between frames
FUNCTIONAL, BASIS = "pbe0", "def2-svp"


def formaldoxime() -> Atoms:
    """Return CH2=N-OH near its minimum, with the hydrogen atom of oxygen trans to carbon."""
    positions = [
        [-1.07, 0.10, 0.0],
        [0.0, -0.57, 0.0],
        [1.11, 0.26, 0.0],
        [-1.07, 1.19, 0.0],
        [-2.01, -0.46, 0.0],
        [1.86, -0.34, 0.0],
    ]
    return Atoms("CNOHHH", positions)


def label(atoms: Atoms) -> Atoms:
    """Return the atoms with energy in eV and forces in eV/Å."""
    molecule = gto.M(
        atom=list(zip(atoms.symbols, atoms.positions.tolist(), strict=True)),
        basis=BASIS,
        unit="Angstrom",
        verbose=0,
    )
    field = dft.RKS(molecule, xc=FUNCTIONAL).density_fit()
    energy = HARTREE * field.kernel()
    assert field.converged
    forces = -HARTREE / BOHR * field.nuc_grad_method().kernel()
    labeled = Atoms(atoms.numbers, atoms.positions)
    labeled.calc = SinglePointCalculator(labeled, energy=energy, forces=forces)
    return labeled


def frames_of(seed: int, count: int) -> list[Atoms]:
    """Return labeled frames of one trajectory."""
    rng = np.random.default_rng(seed)
    atoms = formaldoxime()
    atoms.calc = TBLite(method="GFN2-xTB", verbosity=0)
    BFGS(atoms, logfile=None).run(fmax=0.01)
    MaxwellBoltzmannDistribution(atoms, temperature_K=TEMPERATURE, rng=rng)
    dynamics = Langevin(
        atoms, 0.5 * units.fs, temperature_K=TEMPERATURE, friction=0.01 / units.fs, rng=rng
    )
    frames = []
    for _ in range(count):
        dynamics.run(STEPS)
        frames.append(label(atoms))
        frames[-1].info["group"] = f"trajectory {seed}"
    return frames


def main() -> None:
    """Label two trajectories in two processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("frames.xyz"))
    parser.add_argument("--frames", type=int, default=250, help="number in each trajectory")
    options = parser.parse_args()
    with Pool(2) as pool:
        found = pool.starmap(frames_of, [(seed, options.frames) for seed in range(2)])
    write(options.out, [atoms for frames in found for atoms in frames], format="extxyz")


if __name__ == "__main__":
    main()
