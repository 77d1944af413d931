"""Compare a model with its teacher and with published values, and write a table.

Usage: ``python acceptance.py --model default --teacher aimnet2_wb97m-d3_ens.jpt``

The comparisons are those of `criteria`, `densities` and `lasting`, with the limits of `verdict`.
Molecules are those that no model was trained on, in the file of `conformers.py`. Whatever cannot be
compared, as with elements that a model does not know, has a line in the table. Simulations go on
where the same command was stopped. The exit code is 1 if a limit is exceeded, or a comparison has
no result.
"""

from __future__ import annotations

import argparse
import csv
import sys
import warnings
from pathlib import Path

import criteria
import densities
import lasting
from ase.data import chemical_symbols
from comparison import Methods, Result, Sizes, TeacherCalculator, compare
from conformers import load_structures
from teacher import load_teacher
from verdict import COLUMNS, card, misses, rows

from mlff_triton import TensorNetCalculator, UnknownChemistryWarning, load_model
from mlff_triton.model.prediction import members_of

CHECKS = {check.__name__: check for check in (*criteria.CHECKS, *densities.CHECKS, *lasting.CHECKS)}
SIZES = {
    "molecules": "held-out molecules whose uncertainties are judged",
    "waters": "molecules in the box of water",
    "liquid_picoseconds": "time at constant pressure of the box of water",
    "droplet": "molecules in the droplet of water",
    "picoseconds": "time in each ensemble of the drugs and the droplet",
}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default", help="checkpoint or name")
    parser.add_argument("--teacher", type=Path, required=True, help="TorchScript of an ensemble")
    parser.add_argument("--conformers", type=Path, default=Path("conformers.npz"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--out", type=Path, default=Path("acceptance.csv"))
    parser.add_argument("--markdown", type=Path, help="file of a short table for a page")
    for name, text in SIZES.items():
        default = getattr(Sizes, name)
        option, kind = f"--{name.replace('_', '-')}", type(default)
        parser.add_argument(option, type=kind, default=default, help=f"{text}; {default:g}")
    parser.add_argument("--runs", type=Path, default=Sizes.runs, help="directory of simulations")
    args = parser.parse_args()
    for name in SIZES:
        if not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    return args


def methods_of(args: argparse.Namespace) -> Methods:
    """Load the model and its teacher."""
    model = load_model(args.model)
    periodic = None
    if model.has_charges:
        whole = load_model(args.model, coulomb="pme")
        periodic = TensorNetCalculator(whole, device=args.device)
    elements = [set(member.config.elements) for member in members_of(model)]
    return Methods(
        TensorNetCalculator(model, device=args.device, dtype="float64", backend="exact"),
        TeacherCalculator(load_teacher(args.teacher, args.device), args.device),
        tuple(chemical_symbols[z] for z in sorted(set.intersection(*elements))),
        load_structures(args.conformers),
        fast=TensorNetCalculator(model, device=args.device),
        periodic=periodic,
        limit=model.uncertainty_limit,
        is_neutral=not model.uses_charge,
        sizes=Sizes(**{name: getattr(args, name) for name in (*SIZES, "runs")}),
    )


def main() -> None:
    """Run the comparisons, write the tables, and print what is above a limit."""
    args = parse_arguments()
    warnings.simplefilter("ignore", UnknownChemistryWarning)
    methods = methods_of(args)
    found: list[Result] = []
    for name in args.only:
        found += compare(CHECKS[name], methods)
        print(f"{name}: done", flush=True)
    table = list(rows(found))
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(table)
    if args.markdown:
        args.markdown.write_text(card(found))
    for check, item, unit, _, _, error, limit, met in table:
        if limit:
            print(f"{check}, {item}: {error} {unit}, at most {limit}")
        elif met or not error:
            print(f"{check}: {item}")
    sys.exit(bool(misses(table)))


if __name__ == "__main__":
    main()
