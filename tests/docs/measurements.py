"""Values of the committed measurements, as pages write them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from benchmarks.lab import selection
from benchmarks.lab.schema import read_rows
from tools.docs_benchmarks import RESULTS

MIB_OF_GB = 1024  # of memory, as in the tables


@cache
def measured(bench: str) -> selection.Times:
    """Return the rows of a bench that passed, by case and implementation."""
    return selection.passed(read_rows(RESULTS / f"{bench}.csv"))


def ms(bench: str, case: str, impl: str) -> str:
    """Return a median time with three digits."""
    return f"{measured(bench)[case][impl].ms_p50:.3g}"


def gb(bench: str, case: str, impl: str) -> float:
    """Return a peak of memory in GB."""
    return float(measured(bench)[case][impl].peak_mib) / MIB_OF_GB


def ratios(bench: str, cases: Iterable[str], slow: str, fast: str) -> list[float]:
    """Return how many times as fast the second implementation is."""
    rows = [measured(bench)[case] for case in cases]
    return [selection.speed_up(row[slow], row[fast]) for row in rows]


def span(values: Iterable[float], digits: str = ".1f") -> str:
    """Return the smallest and the largest value."""
    values = list(values)
    return f"{min(values):{digits}} to {max(values):{digits}}"


def small(value: float, digits: int = 1) -> str:
    """Write an error as pages do."""
    return f"{value:.{digits}e}".replace("e-0", "e-")
