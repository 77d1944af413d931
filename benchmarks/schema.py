"""One CSV for every benchmark: the columns, a row, and files that never hold half of one."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from mlff_triton.errors import InputError
from mlff_triton.timing import Environment, Timing

PASS, FAIL = "pass", "fail"


@dataclass(frozen=True)
class Row:
    """One implementation on one case.

    Attributes
    ----------
    bench, case, impl : str
        What was measured, on what, and with what.
    atoms, edges : int
        Size of the case; edges are directed, within the model's cutoff.
    gpu, torch, triton, commit, date : str
        See `mlff_triton.timing.Environment`.
    ms_p20, ms_p50, ms_p80 : float or None
        Quantiles of a call, ms; None if the gate failed.
    peak_mib : float or None
        Most memory allocated at a time, MiB; None on a CPU and if the gate failed.
    error : float or None
        Largest error of a force (or of an operator's output) over the largest true one; None if
        nothing came out.
    gate : {"pass", "fail"}
        Whether the results were right. There is no time without a pass.
    """

    bench: str
    case: str
    atoms: int
    edges: int
    impl: str
    gpu: str
    torch: str
    triton: str
    commit: str
    date: str
    ms_p20: float | None
    ms_p50: float | None
    ms_p80: float | None
    peak_mib: float | None
    error: float | None
    gate: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Rows of one key replace each other."""
        return self.bench, self.case, self.impl, self.gpu


FIELDS = tuple(field.name for field in fields(Row))
NUMBERS = ("ms_p20", "ms_p50", "ms_p80", "peak_mib", "error")


def make_row(
    bench: str,
    case: str,
    impl: str,
    size: tuple[int, int],
    where: Environment,
    timing: Timing | None,
    error: float | None,
) -> Row:
    """A row of a measurement; without a timing, of a failure."""
    times = (timing.p20, timing.p50, timing.p80, timing.peak_mib) if timing else (None,) * 4
    gate = PASS if timing else FAIL
    return Row(bench, case, *size, impl, *asdict(where).values(), *times, error, gate)


class Results:
    """The files ``<bench>.csv`` of a folder.

    A new row replaces the one of the same bench, case, implementation and GPU. Files are replaced
    whole, so that one is complete whenever the run ends.

    Parameters
    ----------
    folder : Path
        Made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[str, dict[tuple[str, str, str, str], Row]] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Write rows to their files now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for row in rows:
            if row.bench not in self._rows:
                known = read_rows(self.path(row.bench))
                self._rows[row.bench] = {r.key: r for r in known}
            self._rows[row.bench].pop(row.key, None)
            self._rows[row.bench][row.key] = row
            write_rows(self.path(row.bench), self._rows[row.bench].values())

    def path(self, bench: str) -> Path:
        """File of a benchmark."""
        return self.folder / f"{bench}.csv"


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Replace a file by these rows, at once."""
    draft = path.with_suffix(".tmp")
    with draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows([_text(getattr(row, name)) for name in FIELDS] for row in rows)
    draft.replace(path)


def read_rows(path: Path) -> list[Row]:
    """Rows of a file; none if there is no file.

    Raises
    ------
    InputError
        If it has other columns.
    """
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != FIELDS:
            raise InputError(f"{path} is no benchmark result: its columns are {reader.fieldnames}")
        return [_parse(record) for record in reader]


def read_folder(folder: Path) -> list[Row]:
    """Rows of all files of a folder; an `InputError` if there are none."""
    rows = [row for path in sorted(folder.glob("*.csv")) for row in read_rows(path)]
    if not rows:
        raise InputError(f"{folder} holds no benchmark results")
    return rows


def _parse(record: dict[str, str]) -> Row:
    numbers = {name: float(record[name]) if record[name] else None for name in NUMBERS}
    sizes = {name: int(record[name]) for name in ("atoms", "edges")}
    return Row(**{**record, **numbers, **sizes})


def _text(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def with_bytes(case: str, n_bytes: int) -> str:
    """Name of a bandwidth case: what was done, and how many bytes that must at least move."""
    return f"{case}@{n_bytes}B"


def bytes_of(case: str) -> int:
    """The bytes in a name that `with_bytes` made."""
    match = re.fullmatch(r".+@(\d+)B", case)
    if match is None:
        raise InputError(f"the bandwidth case {case!r} does not say how many bytes it moves")
    return int(match.group(1))
