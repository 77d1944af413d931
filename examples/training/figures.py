"""Figures of the shipped model's errors, drawn from the tables in ``results`` alone.

Usage: ``python figures.py --out ../../docs/images``
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results"
UNKNOWN = ("acetoxime", "azobenzene")  # no training molecule has their functional groups
LABELS = {  # quantity: title and unit
    "energy": ("energies", "kcal/mol"),
    "force": ("components of forces", "kcal/mol/Å"),
}
METHODS = {"gfn2": ("GFN2-xTB, its reference", "s"), "model": ("tensornet-gfn2", "o")}
MOLECULES = {  # title, and source of the published values
    "butane": ("butane, in its training set", "spectroscopy [1]"),
    "phenethylamine": ("phenethylamine, not in it", ""),
    "biphenyl": ("biphenyl, unlike its training set", "MP2/cc-pVQZ [2]"),
}

Table = list[dict[str, str]]


def read(name: str) -> Table:
    """Read a table in ``results``."""
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def points(rows: Table, *columns: str) -> NDArray[np.float64]:
    """Return columns of numbers, [columns, rows]."""
    return np.array([[float(row[column]) for row in rows] for column in columns])


def plot_parity(axes: Axes, rows: Table, quantity: str) -> None:
    """Plot the model over the reference, molecules with unknown groups apart."""
    title, unit = LABELS[quantity]
    rows = [row for row in rows if row["quantity"] == quantity]
    groups = {
        "held-out molecules": [row for row in rows if row["molecule"] not in UNKNOWN],
        "acetoxime and azobenzene": [row for row in rows if row["molecule"] in UNKNOWN],
    }
    for label, group in groups.items():
        reference, model = points(group, "reference", "model")
        error = np.abs(model - reference).mean()
        axes.plot(
            reference, model, ".", ms=3, label=f"{label}: {error:.2g} {unit}", rasterized=True
        )
    axes.axline((0, 0), slope=1, color="gray", linewidth=0.8, zorder=0)
    axes.set(title=title, xlabel=f"GFN2-xTB, {unit}", ylabel=f"tensornet-gfn2, {unit}")
    axes.legend(title="mean absolute error", fontsize="x-small", title_fontsize="x-small")


def plot_torsion(axes: Axes, rows: Table, molecule: str) -> None:
    """Plot the profiles of one molecule, and what is published of it."""
    title, source = MOLECULES[molecule]
    rows = [row for row in rows if row["molecule"] == molecule]
    for method, (label, marker) in METHODS.items():
        found = [row for row in rows if row["method"] == method]
        axes.plot(*points(found, "degrees", "energy_kcal_mol"), marker, ls="-", ms=4, label=label)
    found = [row for row in rows if row["method"] == "published"]
    if found:
        axes.plot(*points(found, "degrees", "energy_kcal_mol"), "k_", ms=9, label=source)
    axes.set_title(title, fontsize="small")
    axes.set(xlabel="torsion, degrees", ylabel="kcal/mol", ylim=(-0.2, None))
    axes.legend(fontsize="x-small")


def draw(out: Path) -> list[Path]:
    """Draw both figures as SVG files into a folder, and return their paths."""
    parity, torsions = read("parity.csv"), read("torsions.csv")
    with mpl.rc_context({"svg.hashsalt": "mlff_triton", "svg.fonttype": "none"}):
        first = Figure(figsize=(9, 4.2), layout="constrained")
        for axes, quantity in zip(first.subplots(1, len(LABELS)), LABELS, strict=True):
            plot_parity(axes, parity, quantity)
        second = Figure(figsize=(11, 3.6), layout="constrained")
        for axes, name in zip(second.subplots(1, len(MOLECULES)), MOLECULES, strict=True):
            plot_torsion(axes, torsions, name)
        paths = [out / "parity.svg", out / "torsions.svg"]
        for figure, path in zip((first, second), paths, strict=True):
            figure.savefig(path, dpi=150, metadata={"Date": None})
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS.parents[2] / "docs" / "images")
    draw(parser.parse_args().out)
