"""Table of docking, made from its CSV file alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lab.cells import error_cell, memory_cell, ms_cell, ratio_cell, times_in_ms
from benchmarks.lab.schema import read_rows
from benchmarks.lab.selection import DOCKING_OURS, DOCKING_PEERS, best_peer, passed


def docking_table(folder: Path) -> str:
    """Tabulate calls of docking models, and screening per ligand; empty without data."""
    times = passed(read_rows(folder / "docking.csv"))
    head = ["case", "as shipped", "compiled", "mlff_triton", "over the best"]
    head += ["memory, GB (as shipped)", "error (as shipped)"]
    lines = [head, ["---"] * len(head)]
    for case, rows in times.items():
        ours, shipped, compiled = map(rows.get, (DOCKING_OURS, *DOCKING_PEERS))
        best = best_peer(rows, DOCKING_PEERS)
        if ours is not None and shipped is not None:
            memory = f"{memory_cell(ours)} ({memory_cell(shipped)})"
            error = f"{error_cell(ours)} ({error_cell(shipped)})"
            cells = [case, ms_cell(shipped), ms_cell(compiled), f"**{ms_cell(ours)}**"]
            lines.append([*cells, ratio_cell(best, ours), memory, error])
    return times_in_ms(lines, times)
