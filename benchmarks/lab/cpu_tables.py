"""Tables of measurements on CPUs, made from ``cpu.csv`` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.lab.cells import error_cell, markdown, memory_cell, ms_cell, provenance, speed_cell
from benchmarks.lab.schema import PairedRow, read_rows
from benchmarks.lab.selection import (
    COMMAND,
    OUR_LOOPS,
    SCALING,
    TORCHMD_NET,
    Times,
    best_peer,
    p50,
    passed,
    scaling,
)

MD, FIRST, LAMMPS = "md-", "first-", "lammps-"  # prefixes of cases
PEERS = (TORCHMD_NET, "matgl")  # prefixes of implementations
OTHERS = (SCALING, MD, FIRST, LAMMPS)
STAGES = {"engine": "engine", "forces": "first forces", "total": "both", "second": "second forces"}
CACHES = {"cold": "empty", "warm": "filled"}

Rows = dict[str, PairedRow]


def evaluations(folder: Path) -> str:
    """Tabulate energies and forces of atoms that move; empty without data."""
    times = {c: rows for c, rows in _times(folder).items() if not c.startswith(OTHERS)}
    head = ["case", "atoms", "threads", "mlff_triton", "exact module", "PyTorch operators"]
    head += ["best peer", "over the exact module", "over the best", "error (exact)"]
    lines = []
    for case, threads, rows in _by_threads(times):
        if OUR_LOOPS not in rows:
            continue
        ours, exact = rows[OUR_LOOPS], rows.get("exact")
        theirs = best_peer(rows, [name for name in rows if name.startswith(PEERS)])
        route = f" ({theirs.impl})" if theirs else ""
        cells = [case, f"{ours.atoms:,}", str(threads), f"**{ms_cell(ours)}**", ms_cell(exact)]
        cells += [ms_cell(rows.get("torch")), ms_cell(theirs) + route]
        cells += [_ratio(exact), _ratio(theirs)]
        lines.append([*cells, error_cell(ours) + (f" ({error_cell(exact)})" if exact else "")])
    return _table(head, lines, times, "Times in ms. ")


def simulations(folder: Path) -> str:
    """Tabulate steps of simulations; empty without data."""
    times = {c: rows for c, rows in _times(folder).items() if c.startswith(MD)}
    head = ["atoms", "threads", "mlff-triton md", "in Python", "with the exact module"]
    lines = []
    for _, threads, rows in _by_threads(times):
        found = [rows.get(name) for name in (COMMAND, OUR_LOOPS, "exact")]
        atoms = next(iter(rows.values())).atoms
        cells = [f"{atoms:,}", str(threads), *map(speed_cell, found)]
        lines.append([*cells, _ratio(rows.get("exact"))])
    note = "ns/day at 0.5 fs, with ms per step in parentheses. "
    return _table([*head, "over the exact module"], lines, times, note)


def first_forces(folder: Path) -> str:
    """Tabulate the first forces of new processes, after imports; empty without data."""
    times = {c: rows for c, rows in _times(folder).items() if c.startswith(FIRST)}
    head = ["atoms", "threads", "cache", *STAGES.values()]
    lines = []
    for case, threads, rows in _by_threads(times):
        if all(stage in rows for stage in STAGES):
            seconds = [f"{p50(rows[stage]) / 1e3:.2f}" for stage in STAGES]
            state = CACHES[case.rpartition("-")[2]]
            lines.append([f"{rows['forces'].atoms:,}", str(threads), state, *seconds])
    return _table(head, lines, times, "Times in s. ")


def ranks(folder: Path) -> str:
    """Tabulate steps of LAMMPS by ranks and threads; empty without data."""
    times = {c: rows for c, rows in _times(folder).items() if c.startswith(LAMMPS)}
    head = ["atoms", "ranks", "threads of each", "ms per step", "over one rank"]
    lines = []
    for _, threads, rows in _by_threads(times):
        for name, row in rows.items():
            count = name.rpartition("-")[2]
            if count.isdigit():
                lines.append([f"{row.atoms:,}", count, str(threads), ms_cell(row), _ratio(row)])
    return _table(head, lines, times, "")


def threads(folder: Path) -> str:
    """Tabulate times and memory by the number of threads; empty without data."""
    times = scaling(_times(folder))
    head = ["atoms", "threads", "ms", "over one thread", "memory, GB"]
    lines = []
    for rows in times.values():
        found = sorted(rows.values(), key=lambda row: row.threads)
        for row in found:
            gain = f"{p50(found[0]) / p50(row):.1f}x" if found[0].threads == 1 else "–"
            lines.append([f"{row.atoms:,}", str(row.threads), ms_cell(row), gain, memory_cell(row)])
    return _table(head, lines, times, "Memory is that of the process. ")


TABLES: dict[str, Callable[[Path], str]] = {
    "cpu": evaluations,
    "cpu-md": simulations,
    "cpu-first": first_forces,
    "cpu-lammps": ranks,
    "cpu-threads": threads,
}


def _times(folder: Path) -> Times:
    return passed(read_rows(folder / "cpu.csv"))


def _by_threads(times: Times) -> Iterator[tuple[str, int, Rows]]:
    """Yield cases, numbers of threads, and the rows of both by implementation."""
    for case, rows in times.items():
        for count in sorted({row.threads for row in rows.values()}):
            here = {row.impl: row for row in rows.values() if row.threads == count}
            yield case, count, here


def _ratio(row: PairedRow | None) -> str:
    """Write the median ratio of a row to ours in the same rounds."""
    return "–" if row is None or row.ratio is None else f"{row.ratio:.2f}x"


def _table(head: list[str], lines: list[list[str]], times: Times, note: str) -> str:
    if not lines:
        return ""
    return markdown([head, ["---"] * len(head), *lines]) + f"\n\n{note}{provenance(times)}"
