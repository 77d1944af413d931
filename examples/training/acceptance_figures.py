"""Figures and a table of what `acceptance.py` found for the shipped models.

Usage: ``python acceptance_figures.py --out ../../docs/images`` draws, and prints the table
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
FILES = {
    "tensornet-wb97m": "acceptance.csv",
    "tensornet2-wb97m": "acceptance-charged.csv",
    "tensornet-gfn2": "acceptance-gfn2.csv",
}
MARKERS = dict(zip(FILES, "osx", strict=True))
INTERACTIONS = ("hydrogen bonds", "dimers")
MODEL = next(iter(FILES))

Table = list[dict[str, str]]


def read(model: str) -> Table:
    """Read the table of a model."""
    with (RESULTS / FILES[model]).open(newline="") as file:
        return list(csv.DictReader(file))


def findings(rows: Table, *checks: str) -> Table:
    """Return the rows of checks that compare two values."""
    return [row for row in rows if row["check"] in checks and row["model"]]


def numbers(rows: Table, column: str) -> list[float]:
    """Return a column as numbers."""
    return [float(row[column]) for row in rows]


def plot_interactions(axes: Axes) -> None:
    """Plot interaction energies of S22 over those of CCSD(T)."""
    for model, marker in MARKERS.items():
        found = findings(read(model), *INTERACTIONS)
        error = np.mean(numbers(found, "error"))
        label = f"{model}: {error:.2f} kcal/mol"
        values = numbers(found, "reference"), numbers(found, "model")
        axes.plot(*values, marker, ms=5, mfc="none", label=label)
    axes.axline((0, 0), slope=1, color="gray", linewidth=0.8, zorder=0)
    axes.set(title="interaction energies of S22", xlabel="CCSD(T), kcal/mol", ylabel="model")
    axes.legend(title="mean absolute error", fontsize="x-small", title_fontsize="x-small")


def plot_forces(axes: Axes) -> None:
    """Plot errors of forces of molecules that the model was not trained on."""
    found = sorted(findings(read(MODEL), "forces"), key=lambda row: float(row["error"]))
    axes.barh([row["item"].replace("_", " ") for row in found], numbers(found, "error"))
    axes.tick_params(axis="y", labelsize="xx-small")
    axes.set(title="forces of rattled molecules", xlabel="root mean square error, kcal/mol/Å")


def plot_vibrations(axes: Axes) -> None:
    """Plot errors of frequencies over those of the teacher."""
    by_molecule: dict[str, Table] = defaultdict(list)
    for row in findings(read(MODEL), "vibrations"):
        by_molecule[row["item"].split()[0]].append(row)
    for molecule, rows in by_molecule.items():
        errors = np.subtract(numbers(rows, "model"), numbers(rows, "reference"))
        axes.plot(numbers(rows, "reference"), errors, "o", ms=4, label=molecule)
    axes.axhline(0, color="gray", linewidth=0.8, zorder=0)
    axes.set(title="harmonic frequencies", xlabel="AIMNet2, 1/cm", ylabel="model - AIMNet2, 1/cm")
    axes.legend(fontsize="x-small")


def plot_torsion(axes: Axes, rows: Table) -> None:
    """Plot one profile of the model and of its teacher."""
    degrees = [int(row["item"].rpartition(" ")[2]) for row in rows]
    axes.plot(degrees, numbers(rows, "reference"), "s-", ms=3, label="AIMNet2, its teacher")
    axes.plot(degrees, numbers(rows, "model"), "o-", ms=3, label=MODEL)
    name = rows[0]["item"].rpartition(" ")[0].replace("_", " ")
    axes.set_title(name, fontsize="small")


def draw(out: Path) -> list[Path]:
    """Draw both figures as SVG files into a folder, and return their paths."""
    profiles: dict[str, Table] = defaultdict(list)
    for row in findings(read(MODEL), "torsions"):
        profiles[row["item"].rpartition(" ")[0]].append(row)
    with mpl.rc_context({"svg.hashsalt": "mlff_triton", "svg.fonttype": "none"}):
        first = Figure(figsize=(12, 4.6), layout="constrained")
        plots = plot_interactions, plot_forces, plot_vibrations
        for axes, plot in zip(first.subplots(1, 3), plots, strict=True):
            plot(axes)
        second = Figure(figsize=(12, 4.6), layout="constrained")
        panels = second.subplots(2, -(-len(profiles) // 2), sharex=True).ravel()
        for axes, rows in zip(panels, profiles.values(), strict=False):
            plot_torsion(axes, rows)
        panels[0].legend(fontsize="x-small")
        second.supxlabel("torsion, degrees", fontsize="small")
        second.supylabel("kcal/mol", fontsize="small")
        paths = [out / "default-errors.svg", out / "default-torsions.svg"]
        for figure, path in zip((first, second), paths, strict=True):
            figure.savefig(path, metadata={"Date": None})
    return paths


def table() -> str:
    """Return mean and largest errors of all models in Markdown, with the limits aimed at."""
    judged = {model: _summaries(read(model)) for model in FILES}
    head = ["", "aim", *(f"{model}: mean, largest" for model in FILES)]
    lines = [head, ["---"] * len(head)]
    aims = {check: aim for found in judged.values() for check, (_, aim) in found.items()}
    for check, aim in aims.items():
        cells = [judged[model].get(check, ("not compared", ""))[0] for model in FILES]
        lines.append([check, aim, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _summaries(rows: Table) -> dict[str, tuple[str, str]]:
    """Return the errors of each check as text, and its limits."""
    both: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for row in rows:
        if row["item"] in ("mean", "largest") and not row["model"]:
            both[row["check"]][row["item"]] = row
    found = {}
    for check, lines in both.items():
        unit = lines["mean"]["unit"]
        errors = ", ".join(lines[name]["error"] for name in ("mean", "largest"))
        limits = [f"{name} {lines[name]['limit']}" for name in lines if lines[name]["limit"]]
        found[check] = f"{errors} {unit}".strip(), ", ".join(limits)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS.parents[2] / "docs" / "images")
    draw(parser.parse_args().out)
    print(table())
