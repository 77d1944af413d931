"""Energies and forces of many molecules, from a file to a file.

Usage: ``python 11_many.py``, or ``python 11_many.py --structures 1000000 --device auto`` on GPUs

Writes ``molecules.xyz`` and ``results.xyz`` into ``--out``. One of the molecules is broken on
purpose. The same command continues if it was interrupted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.build import molecule

from mlff_triton import predict_files

NAMES = ("H2O", "CH4", "NH3", "CH3OH", "HCN")


def distorted(count: int) -> list[Atoms]:
    """Make molecules with random displacements; in one of them, two atoms coincide."""
    draw = np.random.default_rng(0)
    images = [molecule(NAMES[k % len(NAMES)]) for k in range(count)]
    for atoms in images:
        atoms.positions += draw.normal(0, 0.03, atoms.positions.shape)
    images[1].positions[1] = images[1].positions[0]
    return images


def main() -> None:
    """Write molecules unless they are there, compute or continue, and read the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structures", type=int, default=40)
    parser.add_argument("--device", default="cpu", help="auto for all GPUs")
    parser.add_argument("--out", type=Path, default=Path("many"), help="folder to write into")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    source, results = args.out / "molecules.xyz", args.out / "results.xyz"
    if not source.exists():
        ase.io.write(source, distorted(args.structures))

    progress = predict_files(source, results, device=args.device)
    print(f"{progress.items} structures, {progress.resumed} of them before")
    print(f"{progress.errors} error: {ase.io.read(results, 1).info['error']}")
    energies = [atoms.get_potential_energy() for atoms in ase.io.read(results, "0::5")]
    print(f"energies of water: {np.mean(energies):.3f} ± {np.std(energies):.3f} eV")


if __name__ == "__main__":  # processes of further GPUs import this script
    main()
