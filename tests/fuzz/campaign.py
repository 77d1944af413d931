"""Campaigns over all kinds of cases, and their report."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path

from tests.fuzz import isolated
from tests.fuzz.cases import KINDS
from tests.fuzz.isolated import Limits
from tests.fuzz.verdict import CONFIRMED, FINDING, REFUSED, Verdict

CASE = "case.json"


@dataclass(frozen=True)
class Found:
    """A finding: the case, and the file that reproduces it."""

    kind: str
    name: str
    seed: int
    reason: str
    file: Path | None

    def __str__(self) -> str:
        options = f"--kind {self.kind} --name '{self.name}' --seed {self.seed} --cases 1"
        return f"{self.reason} [python -m tests.fuzz {options}; {self.file}]"


@dataclass
class Report:
    """Numbers of cases by kind, name and status, and all findings."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    findings: list[Found] = field(default_factory=list)

    def total(self, kind: str, status: str) -> int:
        """Return the number of cases of a kind with a status."""
        return sum(n for (k, _, s), n in self.counts.items() if (k, s) == (kind, status))

    def __str__(self) -> str:
        columns = (CONFIRMED, REFUSED, FINDING)
        lines = [f"{'kind':<14}{'case':<24}" + "".join(f"{name:>11}" for name in columns)]
        for kind, name in sorted({key[:2] for key in self.counts}):
            numbers = "".join(f"{self.counts[kind, name, column]:>11}" for column in columns)
            lines.append(f"{kind:<14}{name:<24}{numbers}")
        return "\n".join(lines)


def run_case(
    kind: str, name: str, seed: int, limits: Limits, failures: Path | None = None
) -> tuple[Verdict, Found | None]:
    """Run one case, and keep its files in `failures` if it is a finding."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        folder = Path(temporary)
        verdict = isolated.run(KINDS[kind], name, seed, folder, limits)
        if verdict.status != FINDING:
            return verdict, None
        file = None
        if failures is not None:
            case = {"kind": kind, "name": name, "seed": seed, "reason": verdict.reason}
            (folder / isolated.INPUT / CASE).write_text(json.dumps(case))
            stem = failures / f"{kind}-{name.replace(' ', '-')}-{seed}"
            file = Path(shutil.make_archive(str(stem), "gztar", folder / isolated.INPUT))
    return verdict, Found(kind, name, seed, verdict.reason, file)


def replay(file: Path, limits: Limits) -> Verdict:
    """Check a case again that an earlier campaign saved."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        folder = Path(temporary)
        # versions of Python before 3.11.4 have no filters
        filters = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        shutil.unpack_archive(file, folder / isolated.INPUT, **filters)
        case = json.loads((folder / isolated.INPUT / CASE).read_text())
        return isolated.replay(KINDS[case["kind"]], folder, limits)


def run(
    cases: Iterator[tuple[str, str, int]],
    limits: Limits,
    *,
    failures: Path | None = None,
    seconds: float = float("inf"),
    show: Callable[[Found], None] = lambda _: None,
) -> Report:
    """Run cases, each given by kind, name and seed, until they or the time end."""
    report = Report()
    end = time.monotonic() + seconds
    for kind, name, seed in cases:
        if time.monotonic() > end:
            break
        verdict, found = run_case(kind, name, seed, limits, failures)
        report.counts[kind, name, verdict.status] += 1
        if found is not None:
            report.findings.append(found)
            show(found)
    return report


def names_of(kind: str) -> list[tuple[str, str]]:
    """Return the names of the cases of a kind, each with its kind."""
    return [(kind, name) for name in KINDS[kind].generators]


def all_cases(names: list[tuple[str, str]], first_seed: int) -> Iterator[tuple[str, str, int]]:
    """Yield cases without end: each name in turn, with the next seed."""
    for (kind, name), seed in zip(cycle(names), count(first_seed), strict=False):
        yield kind, name, seed
