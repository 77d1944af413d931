"""Tables and figures of the documentation, from the committed measurements.

MkDocs loads this file as a hook. On a page, ``<!-- table: step -->`` becomes the table of that
name, and ``figures/step.svg`` is the file in ``benchmarks/results``. With ``, if measured`` after
its name, a table may be empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lab import accuracy, cpu_tables, docking_table, electrostatics_tables, tables
from benchmarks.lab.schema import read_rows

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def errors_table(folder: Path, bench: str) -> str:
    """Return every error of a benchmark, by case and implementation; empty without data."""
    lines = [
        f"| {row.case} | {row.impl} | {row.atoms:,} | {row.error:.1e} | {row.gate} |"
        for row in sorted(read_rows(folder / f"{bench}.csv"), key=lambda row: row.case)
        if row.error is not None
    ]
    head = ["| case | implementation | atoms or tokens | error | gate |", "|---|---|---|---|---|"]
    return "\n".join([*head, *lines]) if lines else ""


TABLES: dict[str, Callable[[Path], str]] = {
    "md": tables.simulations,
    "first-step": tables.first_step_table,
    "step": partial(tables.step_table, bench="step"),
    "charged": partial(tables.step_table, bench="charged"),
    "charged-md": tables.charged_simulations,
    "shipped": partial(tables.step_table, bench="shipped"),
    "batch": partial(tables.step_table, bench="batch"),
    "matpes": partial(tables.step_table, bench="matpes"),
    "accuracy": accuracy.accuracy_table,
    "molecules": tables.molecules_table,
    "operators": tables.operators_table,
    "ase": tables.overhead_table,
    "openmm": tables.openmm_table,
    "lammps": tables.lammps_table,
    "lammps-weak": tables.lammps_weak_table,
    "training": tables.training_table,
    "fidelity": partial(errors_table, bench="fidelity"),
    "bio": tables.bio_table,
    "models": tables.models_table,
    "predictions": tables.predictions_table,
    "pairs": tables.pairs_table,
    "convolution": tables.convolution_table,
    "electrostatics": electrostatics_tables.electrostatics_table,
    "mixed": electrostatics_tables.mixed_table,
    "docking": docking_table.docking_table,
    "bio-fidelity": partial(errors_table, bench="bio-fidelity"),
    "alignment": tables.alignment_table,
    "alignment-batches": tables.cells_table,
    **cpu_tables.TABLES,
}
MARKER = re.compile(r"^<!-- table: ([\w-]+)(, if measured)? -->$", re.MULTILINE)


def table(name: str, *, may_be_empty: bool = False) -> str:
    """Return one table as Markdown.

    Parameters
    ----------
    name : str
        Key of `TABLES`.
    may_be_empty : bool
        If True, the table is an empty string if nothing was measured for it.

    Raises
    ------
    ValueError
        If there is no such table, or if nothing was measured for it.
    """
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}: use one of {', '.join(TABLES)}")
    text = TABLES[name](RESULTS)
    if not text and not may_be_empty:
        raise ValueError(f"the table {name!r} is empty: {RESULTS} lacks its measurements")
    return text


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Put tables in place of their markers."""
    return MARKER.sub(lambda found: table(found[1], may_be_empty=bool(found[2])), markdown)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the committed figures to the site."""
    from mkdocs.structure.files import File

    for path in sorted(RESULTS.glob("*.svg")):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    return files
