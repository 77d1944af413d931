"""Energies and forces of a model and of GFN2-xTB, for molecules that it was not trained on.

Usage: ``python parity.py --data data --model default --out results/parity.csv``

The data are those of ``make_data.py``. Of each held-out molecule, a few configurations are taken,
and of their forces a random part, so that the table stays small.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from geometry import FloatArray
from tasks import SPLITS

from mlff_triton import TensorNetCalculator, UnknownChemistryWarning
from mlff_triton.units import EV_TO_KCAL_PER_MOL

COLUMNS = ("molecule", "quantity", "reference", "model")
CONFIGURATIONS = 30  # per molecule
COMPONENTS = 120  # of forces, per molecule


def held_out(folder: Path) -> dict[str, list[Atoms]]:
    """Read configurations with energies and forces, by the name of their molecule."""
    found: dict[str, list[Atoms]] = defaultdict(list)
    for path in sorted(folder.glob("data_*.npz")):
        with np.load(path) as data:
            arrays = {name: data[name] for name in data}
        ends = np.cumsum(arrays["n_atoms"].astype(int))
        for index in np.flatnonzero(arrays["split"] == SPLITS["test_molecule"]):
            part = slice(ends[index] - arrays["n_atoms"][index], ends[index])
            atoms = Atoms(arrays["numbers"][part], arrays["positions"][part])
            atoms.calc = SinglePointCalculator(
                atoms, energy=arrays["energy"][index], forces=arrays["forces"][part]
            )
            task = str(arrays["task_names"][arrays["task"][index]])
            found[re.split("[_.]", task)[1]].append(atoms)
    return found


def compare(
    images: list[Atoms], calculator: TensorNetCalculator, rng: np.random.Generator
) -> Iterator[tuple[str, float, float]]:
    """Yield quantity, reference and the model's value, in kcal/mol and kcal/mol/Å.

    Energies are relative to the mean of the reference, so an error that all configurations of a
    molecule share remains.
    """
    chosen = [images[i] for i in np.linspace(0, len(images) - 1, CONFIGURATIONS).astype(int)]
    energies = np.array([atoms.get_potential_energy() for atoms in chosen])
    forces: FloatArray = np.concatenate([atoms.get_forces().ravel() for atoms in chosen])
    for atoms in chosen:
        atoms.calc = calculator
    predicted = np.array([atoms.get_potential_energy() for atoms in chosen])
    predicted_forces = np.concatenate([atoms.get_forces().ravel() for atoms in chosen])
    pairs = np.stack([energies, predicted], axis=1) - energies.mean()
    for reference, value in pairs * EV_TO_KCAL_PER_MOL:
        yield "energy", reference, value
    for index in np.sort(rng.choice(len(forces), COMPONENTS, replace=False)):
        yield (
            "force",
            forces[index] * EV_TO_KCAL_PER_MOL,
            predicted_forces[index] * EV_TO_KCAL_PER_MOL,
        )


def main() -> None:
    """Compare all held-out molecules, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--model", default="default", help="checkpoint or name")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "parity.csv"
    )
    args = parser.parse_args()
    molecules = held_out(args.data)
    if not molecules:
        sys.exit(f"{args.data} has no held-out molecules: create them with make_data.py")
    warnings.simplefilter("ignore", UnknownChemistryWarning)  # some molecules are meant to fail
    calculator = TensorNetCalculator(args.model)
    rng = np.random.default_rng(0)
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for name, images in sorted(molecules.items()):
            for quantity, reference, value in compare(images, calculator, rng):
                writer.writerow((name, quantity, f"{reference:.3f}", f"{value:.3f}"))


if __name__ == "__main__":
    main()
