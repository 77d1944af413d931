"""Cells of tables, tables in Markdown, and the origin of their measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.lab.schema import UNCHECKED, AlignmentRow, AnyRow, Row
from benchmarks.lab.selection import NS_PER_DAY, Times, p50, speed_up


def ms_cell(row: AnyRow | None) -> str:
    """Write a time, with a mark if no truth was there to compare the results with."""
    if row is None:
        return "–"
    return f"{p50(row):.3g}" + ("†" if row.gate == UNCHECKED else "")


def speed_cell(row: Row | None) -> str:
    """Write ns/day, and ms per step in parentheses."""
    return f"{NS_PER_DAY / p50(row):.3g} ({ms_cell(row)})" if row else "–"


def gcups_cell(row: AlignmentRow | None) -> str:
    """Write a speed of alignment; a dash without a row."""
    if row is None:
        return "–"
    return f"{row.gcups:.3g}" if row.gcups < 1000 else f"{row.gcups:,.0f}"


def times_in_ms(lines: list[list[str]], times: Times) -> str:
    """Return a table of times, whose first two lines are its head; empty without others."""
    return "" if len(lines) == 2 else markdown(lines) + f"\n\nTimes in ms. {provenance(times)}"


def ratio_cell(slow: Row | None, fast: Row) -> str:
    """Write how many times as fast the second one is; a dash without the first."""
    return f"{speed_up(slow, fast):.1f}x" if slow else "–"


def memory_cell(row: Row) -> str:
    """Write the peak of the memory in GB; a dash if it is unknown."""
    if row.peak_mib is None:
        return "–"
    size = row.peak_mib / 1024
    return f"{size:.2g}" if size < 100 else f"{size:.0f}"


def error_cell(row: Row) -> str:
    """Write an error; a dash if it is unknown."""
    return "–" if row.error is None else f"{row.error:.0e}"


def provenance(times: Times) -> str:
    """Name the devices, versions, commits and dates of the measurements, and explain marks."""
    rows = [row for by_name in times.values() for row in by_name.values()]
    parts: list[Callable[[Row], str]] = [
        lambda r: r.machine,
        lambda r: f"PyTorch {r.torch}",
        lambda r: f"Triton {r.triton}",
        lambda r: f"commit {r.commit}",
        lambda r: r.date,
    ]
    line = "Measured: " + ", ".join(" and ".join(sorted(set(map(part, rows)))) for part in parts)
    if any(row.gate == UNCHECKED for row in rows):
        line += ". † Unchecked: there was no truth to compare these results with"
    return line


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Write lines of cells as a table, whose first two are its head."""
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
