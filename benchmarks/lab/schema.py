"""A CSV for every benchmark: the columns, a row, and files that never hold half of one."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mlff_triton._common.timing import Environment, Timing
from mlff_triton.errors import InputError

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
        See `mlff_triton._common.timing.Environment`.
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

    @property
    def size(self) -> int:
        """What cases are put in order by."""
        return self.atoms

    @property
    def summary(self) -> str:
        """The row, for a person."""
        error = "" if self.error is None else f"error {self.error:.1e}"
        return _summary(self, f"{error} {self.gate}")


@dataclass(frozen=True)
class AlignmentRow:
    """One implementation on one case of the alignment of sequences.

    Attributes
    ----------
    bench, case, impl : str
        As in `Row`.
    pairing : {"all", "zip"}
        Every query with every target, or the k-th with the k-th.
    pairs, rows, columns : int
        How many pairs the implementation aligned, and letters of the longest query and target.
    device, version : str
        What computed, and the package that it ran.
    gpu, torch, triton, commit, date : str
        As in `Row`.
    ms_p20, ms_p50, ms_p80 : float or None
        Quantiles of the time of all pairs, ms; None if a score was wrong.
    gcups : float or None
        Cells of all tables over the median, 1e9 a second.
    peak_mib : float or None
        As in `Row`; None also of what allocates memory by itself.
    checked, wrong : int
        Pairs that were held against the truth, and those that were not right.
    """

    bench: str
    case: str
    impl: str
    pairing: str
    pairs: int
    rows: int
    columns: int
    device: str
    version: str
    gpu: str
    torch: str
    triton: str
    commit: str
    date: str
    ms_p20: float | None
    ms_p50: float | None
    ms_p80: float | None
    gcups: float | None
    peak_mib: float | None
    checked: int
    wrong: int

    @property
    def key(self) -> tuple[str, str, str, str]:
        """As of `Row`."""
        return self.bench, self.case, self.impl, self.gpu

    @property
    def size(self) -> int:
        """As of `Row`."""
        return self.rows

    @property
    def gate(self) -> str:
        """As in `Row`."""
        return FAIL if self.ms_p50 is None else PASS

    @property
    def summary(self) -> str:
        """As of `Row`."""
        speed = "" if self.gcups is None else f"{self.gcups:10.4g} GCUPS"
        return _summary(self, f"{speed} {self.wrong} of {self.checked} wrong {self.gate}")


AnyRow = Row | AlignmentRow


def _summary(row: AnyRow, rest: str) -> str:
    time = "no time" if row.ms_p50 is None else f"{row.ms_p50:10.4f} ms"
    memory = "" if row.peak_mib is None else f"{row.peak_mib:9.0f} MiB"
    return f"{row.bench:10} {row.case:28} {row.impl:16} {time:>13} {memory} {rest}"


def columns_of(kind: type[AnyRow]) -> tuple[str, ...]:
    """Columns of a CSV of such rows."""
    return tuple(field.name for field in fields(kind))


def kind_of(path: Path) -> type[AnyRow]:
    """Rows that a file holds, by its name."""
    return AlignmentRow if path.stem == "alignment" else Row


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
        self._rows: dict[str, dict[tuple[str, str, str, str], AnyRow]] = {}

    def add(self, rows: Iterable[AnyRow]) -> None:
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


def write_rows(path: Path, rows: Iterable[AnyRow]) -> None:
    """Replace a file by these rows, at once."""
    draft = path.with_suffix(".tmp")
    with draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = columns_of(kind_of(path))
        writer.writerow(columns)
        writer.writerows([_text(getattr(row, name)) for name in columns] for row in rows)
    draft.replace(path)


def read_rows(path: Path) -> list[Any]:
    """Rows of a file; none if there is no file.

    Raises
    ------
    InputError
        If it has other columns.
    """
    if not path.exists():
        return []
    kind = kind_of(path)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != columns_of(kind):
            raise InputError(f"{path} is no benchmark result: its columns are {reader.fieldnames}")
        return [_parse(kind, record) for record in reader]


def read_folder(folder: Path) -> list[Any]:
    """Rows of all files of a folder; an `InputError` if there are none."""
    rows = [row for path in sorted(folder.glob("*.csv")) for row in read_rows(path)]
    if not rows:
        raise InputError(f"{folder} holds no benchmark results")
    return rows


def _parse(kind: type[AnyRow], record: dict[str, str]) -> AnyRow:
    return kind(**{field.name: PARSERS[field.type](record[field.name]) for field in fields(kind)})


PARSERS: dict[Any, Callable[[str], Any]] = {  # of what annotations say
    "str": str,
    "int": int,
    "float | None": lambda text: float(text) if text else None,
}


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
