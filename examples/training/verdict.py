"""Limits on what comparisons find, and tables of what keeps them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from comparison import Finding, Gap, Result

COLUMNS = ("check", "item", "unit", "model", "reference", "error", "limit", "met")
CARD = ("check", "mean", "largest", "limit", "")
NO_LIMITS = math.inf, math.inf
LIMITS = {  # check: largest mean and largest single error
    "walls": (math.inf, 0.0),
    "forces": (1.5, math.inf),
    "ions": (1.5, math.inf),
    "dimers": (0.8, math.inf),
    "hydrogen bonds": (0.8, 1.5),
    "torsions": (0.6, math.inf),
    "vibrations": (50.0, 120.0),
    "additive": (math.inf, 1e-4),
    "H2": (math.inf, 20.0),
    "proton transfer": (math.inf, 1.0),
    "uncertainty": (math.inf, 10.0),
    "crystals": (math.inf, 4.0),
    "water, density": (math.inf, 0.05),
    "water, O-O distance": (math.inf, 0.06),
    "water, O-O peak": (math.inf, 0.4),
    "intact": (math.inf, 0.0),
    "drift": (math.inf, 1.0),
}
Row = tuple[str, ...]


class Verdict(NamedTuple):
    """Mean and largest error of a check, and their limits."""

    check: str
    unit: str
    errors: tuple[float, float]
    limits: tuple[float, float]

    @property
    def is_met(self) -> tuple[bool, bool]:
        """True for each error that is within its limit, and False if it is not a number."""
        mean, largest = (
            math.isinf(limit) or error <= limit
            for error, limit in zip(self.errors, self.limits, strict=True)
        )
        return mean, largest


def verdict(check: str, found: Sequence[Finding]) -> Verdict:
    """Judge the findings of a check."""
    errors = [error_of(each) for each in found]
    both = float(np.mean(errors)), float(np.max(errors))  # NaN if one is
    return Verdict(check, found[0].unit, both, LIMITS.get(check, NO_LIMITS))


def error_of(finding: Finding) -> float:
    """Return the size of an error; of a wall, how much it attracts."""
    if finding.check == "walls":
        return max(0.0, -finding.model) if math.isfinite(finding.model) else math.nan
    return abs(finding.model - finding.reference)


def by_check(results: Sequence[Result]) -> dict[str, list[Finding]]:
    """Group findings by their check."""
    found: dict[str, list[Finding]] = {}
    for each in results:
        if isinstance(each, Finding):
            found.setdefault(each.check, []).append(each)
    return found


def rows(results: Sequence[Result]) -> Iterator[Row]:
    """Yield one row for each finding, the mean and the largest error of each check, and gaps."""
    for check, found in by_check(results).items():
        for each in found:
            numbers = (each.model, each.reference, error_of(each))
            yield (check, each.item, each.unit, *(f"{x:.4g}" for x in numbers), "", "")
        judged = verdict(check, found)
        for name, error, limit, met in zip(
            ("mean", "largest"), judged.errors, judged.limits, judged.is_met, strict=True
        ):
            shown = ("", "") if math.isinf(limit) else (f"{limit:g}", "yes" if met else "no")
            yield check, name, judged.unit, "", "", f"{error:.4g}", *shown
    for gap in gaps(results):
        yield gap.check, gap.reason, "", "", "", "", "", "no" if gap.is_missed else ""


def gaps(results: Sequence[Result]) -> list[Gap]:
    """Return what could not be compared."""
    return [each for each in results if isinstance(each, Gap)]


def misses(table: Sequence[Row]) -> list[Row]:
    """Return the rows whose limit is not kept, and those of checks without a result."""
    return [row for row in table if row[-1] == "no"]


def card(results: Sequence[Result]) -> str:
    """Return a short table of all checks in Markdown."""
    lines = [CARD, ("---", "---:", "---:", "---", "---")]
    for check, found in by_check(results).items():
        judged = verdict(check, found)
        mean, largest = (f"{error:.3g} {judged.unit}".strip() for error in judged.errors)
        named = zip(("mean", "largest"), judged.limits, strict=True)
        limits = ", ".join(f"{name} {x:g}" for name, x in named if not math.isinf(x))
        met = ("met" if all(judged.is_met) else "missed") if limits else ""
        lines.append((check, mean, largest, limits, met))
    lines += [
        (gap.check, "", "", gap.reason, "missed" if gap.is_missed else "") for gap in gaps(results)
    ]
    escaped = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "".join(f"| {line} |\n" for line in escaped)
