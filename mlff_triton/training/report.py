"""The report of a training: tables of errors, and a figure of predictions against labels."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np

from mlff_triton._common.figures import figure_class
from mlff_triton.training.evaluation import Errors, mae, rmse
from mlff_triton.training.frames import Array
from mlff_triton.training.uncertainty import BAD, FALSE_ALARMS, Judgement
from mlff_triton.units import EV_PER_A3_TO_GPA

MOST_POINTS = 20_000  # of each part in a panel
MOST_GROUPS = 50  # that are listed
Row = tuple[str, ...]

SPLITS: Row = (
    *("part", "structures", "energy MAE, meV/atom", "energy RMSE", "force MAE, meV/Å"),
    *("force RMSE", "stress MAE, GPa", "charge MAE, e", "dipole MAE, e Å", "relative MAE, meV"),
)
ELEMENTS: Row = ("element", "atoms", "force MAE, meV/Å", "force RMSE", "charge MAE, e")
DECILES: Row = ("group", "atoms", "predicted error, meV/Å", "error, meV/Å")
GROUPS: Row = ("group", "structures", "energy MAE, meV/atom", "force MAE, meV/Å")


def split_rows(errors: Mapping[str, Errors]) -> list[Row]:
    """Return a row of `SPLITS` for each part of the structures."""
    return [
        (
            name,
            str(len(found.frames)),
            *(_milli(value(found.per_atom)) for value in (mae, rmse)),
            *(_milli(value(found.forces)) for value in (mae, rmse)),
            _number(EV_PER_A3_TO_GPA * mae(found.known_stress)),
            _number(mae(found.known_charges)),
            _number(mae(found.known_dipoles)),
            _milli(mae(found.relative)),
        )
        for name, found in errors.items()
    ]


def report(
    errors: Mapping[str, Errors],
    facts: Sequence[str],
    judgement: Judgement | None,
    doubt: str | None = None,
) -> str:
    """Return a report in Markdown.

    Parameters
    ----------
    errors : dict of Errors
        Errors by the names of parts. Elements and groups are those of the last part.
    facts : sequence of str
        Lines about data and options.
    judgement : Judgement or None
        Comparison of predicted with actual errors, if the model predicts them.
    doubt : str, optional
        A sentence about labels that are probably wrong, as the first line.

    Returns
    -------
    str
    """
    last, shown = list(errors.items())[-1]
    elements = [
        (name, str(len(found)), _milli(mae(found)), _milli(rmse(found)), _number(mae(charges)))
        for name, (found, charges) in shown.by_element().items()
    ]
    groups = sorted(shown.by_group().items(), key=lambda group: -mae(group[1][1]))
    rows = [
        (name, str(len(energy)), _milli(mae(energy)), _milli(mae(forces)))
        for name, (energy, forces) in groups[:MOST_GROUPS]
    ]
    which = f"The {MOST_GROUPS} of {len(groups)} groups with" if len(groups) > len(rows) else "With"
    return "\n".join(
        [
            *([f"**Warning: {doubt}.**", ""] if doubt else []),
            "# Report of the training",
            "",
            *(f"- {fact}" for fact in facts),
            "",
            "Errors of forces and stresses are those of components. Energies are per atom.",
            "Errors of dipoles are the lengths of vectors. Relative energies are those of whole",
            "structures, relative to the mean of their series.",
            "",
            *_table(SPLITS, split_rows(errors)),
            f"## Elements, {last}",
            "",
            *_table(ELEMENTS, elements),
            f"## Groups, {last}",
            "",
            f"{which} the largest errors of forces first.",
            "",
            *_table(GROUPS, rows),
            *_trust(judgement),
        ]
    )


def _trust(judgement: Judgement | None) -> list[str]:
    """Return the section on the errors that a model predicts for itself."""
    if judgement is None:
        return [
            "## Uncertainty",
            "",
            "The model does not know its errors, as those in the validation set are all zero.",
            "",
        ]
    found, limit = judgement.reliability, judgement.limit
    rows = [
        (str(k), str(len(actual)), _milli(predicted.mean()), _milli(actual.mean()))
        for k, (predicted, actual) in enumerate(found.deciles(), 1)
    ]
    bad, good = found.flagged(limit)
    what = (
        "The model predicts the size of the error of the force on each atom. Atoms are in ten "
        "groups, those with the smallest predictions first."
    )
    flags = (
        f"The limit is {_milli(limit)} meV/Å: {FALSE_ALARMS:.0%} of the structures in the "
        f"validation set whose errors are at most {_milli(BAD)} meV/Å, or of all if there are "
        f"none, have an atom above it. Of the {judgement.part} set, it flags {_share(*good)} of "
        f"those with such errors, and {_share(*bad)} of those with larger ones."
    )
    return [
        f"## Uncertainty, {judgement.part}",
        "",
        what,
        "",
        *_table(DECILES, rows),
        flags,
        "",
    ]


def _share(part: int, whole: int) -> str:
    """Write a number as a share of a total, with percent if there is a total."""
    return f"{part} of {whole}" + (f" ({part / whole:.0%})" if whole else "")


def parity_figure(errors: Mapping[str, Errors]) -> bytes:
    """Draw predictions over labels of energies and forces; PNG.

    Energies are per atom, without the energies of the elements that explain the labels best,
    because these would hide everything else.
    """
    figure = figure_class()(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    elements = sorted({z for found in errors.values() for z in found.frames.elements})
    fractions = {
        name: found.frames.counts(elements) / found.frames.n_atoms[:, None]
        for name, found in errors.items()
    }
    labels = {name: found.frames.energy / found.frames.n_atoms for name, found in errors.items()}
    rows = np.concatenate(list(fractions.values())), np.concatenate(list(labels.values()))
    references = np.linalg.lstsq(*rows, rcond=None)[0]
    for name, found in errors.items():
        _scatter(left, labels[name] - fractions[name] @ references, found.per_atom, name)
        _scatter(right, found.frames.forces.reshape(-1), found.forces.reshape(-1), name)
    for axes, what in ((left, "energy (eV/atom)"), (right, "force component (eV/Å)")):
        low, high = axes.get_xlim()
        axes.plot([low, high], [low, high], color="0.6", lw=0.8, zorder=0)
        axes.set_xlabel(f"reference {what}")
        axes.set_ylabel(f"model {what}")
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    return content.getvalue()


def _scatter(axes: object, labels: Array, errors: Array, name: str) -> None:
    """Draw at most `MOST_POINTS` points, evenly chosen."""
    every = -(-len(labels) // MOST_POINTS)
    x, y = labels[::every], (labels + errors)[::every]
    axes.plot(x, y, ".", ms=3, alpha=0.5, label=name)  # type: ignore[attr-defined]


def _table(header: Row, rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table in Markdown, and an empty one; without columns of unknowns."""
    kept = [k for k in range(len(header)) if not rows or any(row[k] for row in rows)]
    escaped = [[row[k].replace("|", "\\|") for k in kept] for row in (header, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    return [lines[0], "|---" + "|---:" * (len(kept) - 1) + "|", *lines[1:], ""]


def _milli(value: float) -> str:
    return _number(1000 * value)


def _number(value: float) -> str:
    return "" if value != value else f"{value:.4g}"
