"""Compare a model with its teacher and with published values, and write a table.

Usage: ``python acceptance.py --model default --teacher aimnet2_wb97m-d3_ens.jpt``

The comparisons are those of `criteria`, with limits on their errors. Molecules are those that no
model was trained on, in the file of `conformers.py`. Elements that a model does not know are left
out. The exit code is 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from ase.data import chemical_symbols
from conformers import load_structures
from criteria import CHECKS, Finding, Methods, TeacherCalculator
from teacher import load_teacher

from mlff_triton import TensorNetCalculator, UnknownChemistryWarning, load_model

COLUMNS = ("check", "item", "unit", "model", "reference", "error", "limit")
NO_LIMITS = math.inf, math.inf
LIMITS = {  # check: largest mean and largest single error
    "walls": (math.inf, 0.0),
    "forces": (1.5, math.inf),
    "dimers": (0.8, math.inf),
    "hydrogen bonds": (0.8, 1.5),
    "torsions": (0.6, math.inf),
    "vibrations": (50.0, 120.0),
    "additive": (math.inf, 1e-4),
    "H2": (math.inf, 20.0),
    "proton transfer": (math.inf, 1.0),
}
Row = tuple[str, ...]


def rows(found: list[Finding]) -> Iterator[Row]:
    """Yield one row for each finding, and the mean and the largest error of each check."""
    for check in dict.fromkeys(each.check for each in found):
        chosen = [each for each in found if each.check == check]
        errors = [_error(each) for each in chosen]
        for each, error in zip(chosen, errors, strict=True):
            numbers = (each.model, each.reference, error)
            yield (check, each.item, each.unit, *(f"{x:.4g}" for x in numbers), "")
        limits = LIMITS.get(check, NO_LIMITS)
        for name, error, limit in zip(
            ("mean", "largest"), (np.mean(errors), max(errors)), limits, strict=True
        ):
            shown = "" if math.isinf(limit) else f"{limit:g}"
            yield check, name, chosen[0].unit, "", "", f"{error:.4g}", shown


def misses(table: list[Row]) -> list[Row]:
    """Return the rows whose error is above a limit, or not a number."""
    return [row for row in table if row[-1] and not float(row[-2]) <= float(row[-1])]


def _error(finding: Finding) -> float:
    """Return the size of an error; of a wall, how much it attracts."""
    if finding.check == "walls":
        return max(0.0, -finding.model) if math.isfinite(finding.model) else math.nan
    return abs(finding.model - finding.reference)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default", help="checkpoint or name")
    parser.add_argument("--teacher", type=Path, required=True, help="TorchScript of an ensemble")
    parser.add_argument("--conformers", type=Path, default=Path("conformers.npz"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checks", nargs="+", choices=[check.__name__ for check in CHECKS])
    parser.add_argument("--out", type=Path, default=Path("acceptance.csv"))
    return parser.parse_args()


def main() -> None:
    """Run the comparisons, write the table, and print what is above a limit."""
    args = parse_arguments()
    warnings.simplefilter("ignore", UnknownChemistryWarning)
    methods = Methods(
        TensorNetCalculator(args.model, device=args.device, dtype="float64", backend="exact"),
        TeacherCalculator(load_teacher(args.teacher, args.device), args.device),
        tuple(chemical_symbols[z] for z in load_model(args.model).config.elements),
        load_structures(args.conformers),
    )
    found = []
    for check in CHECKS:
        if not args.checks or check.__name__ in args.checks:
            found += check(methods)
            print(f"{check.__name__}: done", flush=True)
    table = list(rows(found))
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(table)
    for row in table:
        if row[1] in ("mean", "largest") and row[-1]:
            print(f"{row[0]}, {row[1]}: {row[-2]} {row[2]}, at most {row[-1]}")
    sys.exit(bool(misses(table)))


if __name__ == "__main__":
    main()
