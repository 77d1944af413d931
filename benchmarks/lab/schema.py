"""Rows of results, and one CSV file per benchmark that is always complete."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from mlff_triton._common.files import replace_file
from mlff_triton._common.timing import Environment, Timing
from mlff_triton.errors import InputError

RESULTS = Path(__file__).parents[1] / "results"  # the committed files
PASS, FAIL = "pass", "fail"
UNCHECKED = "unchecked"  # timed, without a truth to compare results with


@dataclass(frozen=True)
class Row:
    """Measurement of one implementation on one case.

    Attributes
    ----------
    bench, case, impl : str
        Names of the benchmark, the case and the implementation.
    atoms, edges : int
        Size of the case. Edges are directed and within the model's cutoff.
    gpu, torch, triton, commit, date : str
        See `mlff_triton._common.timing.Environment`.
    ms_p20, ms_p50, ms_p80 : float or None
        Quantiles of the time of a call in ms; None if the gate failed.
    peak_mib : float or None
        Peak of allocated memory in MiB; None on a CPU and if the gate failed.
    error : float or None
        Largest error of a force (or of an operator's output) over the largest true one; None if
        there were no results.
    gate : {"pass", "unchecked", "fail"}
        "pass" if the results were right, "unchecked" if nothing was there to compare them with.
        Only these rows have times.
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
        """Key under which a new row replaces an old one."""
        return self.bench, self.case, self.impl, self.gpu

    @property
    def machine(self) -> str:
        """Device on which methods are compared."""
        return self.gpu

    @property
    def method(self) -> str:
        """Name of the implementation among those of a case."""
        return self.impl

    @property
    def size(self) -> int:
        """Number of atoms, by which cases are sorted."""
        return self.atoms

    @property
    def summary(self) -> str:
        """The row as a line of text."""
        error = "" if self.error is None else f"error {self.error:.1e}"
        return _summary(self, f"{error} {self.gate}")


@dataclass(frozen=True)
class PairedRow(Row):
    """Measurement on a CPU, in alternation with others.

    Attributes
    ----------
    bench, case, atoms, edges, impl, gpu, torch, triton, commit, date : see `Row`
        Here, ``gpu`` names the CPU and the number of threads.
    ms_p20, ms_p50, ms_p80, peak_mib, error, gate : see `Row`
        The peak is that of the resident memory of the process.
    threads : int
        Number of threads of each process.
    precision : str
        Precision of the network.
    ratio : float or None
        Median over rounds of the time over that of ours in the same round; None without ours.
    """

    threads: int
    precision: str
    ratio: float | None

    @property
    def machine(self) -> str:
        """Name of the CPU, without the number of threads."""
        return self.gpu.partition(" (threads")[0]

    @property
    def method(self) -> str:
        """Name of the implementation with its number of threads, as made by `with_threads`."""
        return with_threads(self.impl, self.threads)

    @property
    def summary(self) -> str:
        """The row as a line of text."""
        ratio = "" if self.ratio is None else f" {self.ratio:.2f} times ours"
        return f"{super().summary} threads {self.threads}{ratio}"


@dataclass(frozen=True)
class AlignmentRow:
    """Measurement of one aligner on one case.

    Attributes
    ----------
    bench, case, impl : str
        As in `Row`.
    pairing : {"all", "zip"}
        Every query with every target, or the k-th query with the k-th target.
    pairs, rows, columns : int
        Number of aligned pairs, and lengths of the longest query and target.
    device, version : str
        Processor that the aligner ran on, and its package with version.
    gpu, torch, triton, commit, date : str
        As in `Row`.
    ms_p20, ms_p50, ms_p80 : float or None
        Quantiles of the time of all pairs in ms; None if a score was wrong.
    gcups : float or None
        Cells of all alignment matrices over the median time, 1e9 per second.
    peak_mib : float or None
        As in `Row`; also None if the aligner does not allocate through PyTorch.
    checked, wrong : int
        Number of pairs compared with the truth, and number of wrong ones.
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
        """Key under which a new row replaces an old one."""
        return self.bench, self.case, self.impl, self.gpu

    @property
    def machine(self) -> str:
        """Device on which methods are compared."""
        return self.gpu

    @property
    def method(self) -> str:
        """Name of the implementation among those of a case."""
        return self.impl

    @property
    def size(self) -> int:
        """Length of the longest query, by which cases are sorted."""
        return self.rows

    @property
    def gate(self) -> str:
        """Pass if all scores were right, else fail."""
        return FAIL if self.ms_p50 is None else PASS

    @property
    def summary(self) -> str:
        """The row as a line of text."""
        speed = "" if self.gcups is None else f"{self.gcups:10.4g} GCUPS"
        return _summary(self, f"{speed} {self.wrong} of {self.checked} wrong {self.gate}")


AnyRow = Row | AlignmentRow


def _summary(row: AnyRow, rest: str) -> str:
    time = "no time" if row.ms_p50 is None else f"{row.ms_p50:10.4f} ms"
    memory = "" if row.peak_mib is None else f"{row.peak_mib:9.0f} MiB"
    return f"{row.bench:10} {row.case:28} {row.impl:16} {time:>13} {memory} {rest}"


KINDS: dict[str, type[AnyRow]] = {"alignment": AlignmentRow, "cpu": PairedRow}  # by bench


def columns_of(kind: type[AnyRow]) -> tuple[str, ...]:
    """Return the column names of a kind of row."""
    return tuple(field.name for field in fields(kind))


def kind_of(path: Path) -> type[AnyRow]:
    """Return the kind of row that a file holds, by its name."""
    return KINDS.get(path.stem, Row)


def gate_of(ms: float | None, error: float | None) -> str:
    """Return the gate of a row with this time and this error."""
    if ms is None:
        return FAIL
    return UNCHECKED if error is None else PASS


def make_row(
    bench: str,
    case: str,
    impl: str,
    size: tuple[int, int],
    where: Environment,
    timing: Timing | None,
    error: float | None,
) -> Row:
    """Make the row of a measurement; without a timing, that of a failure."""
    times = (timing.p20, timing.p50, timing.p80, timing.peak_mib) if timing else (None,) * 4
    gate = gate_of(timing.p50 if timing else None, error)
    return Row(bench, case, *size, impl, *asdict(where).values(), *times, error, gate)


class Results:
    """The files ``<bench>.csv`` of a folder.

    A new row replaces the one of the same bench, case, implementation and GPU. Each write replaces
    a whole file, so that files are complete whenever a run is stopped.

    Parameters
    ----------
    folder : Path
        Folder of the files, created by the first write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[str, dict[tuple[str, str, str, str], AnyRow]] = {}

    def add(self, rows: Iterable[AnyRow]) -> None:
        """Write rows to their files at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for row in rows:
            if row.bench not in self._rows:
                known = read_rows(self.path(row.bench))
                self._rows[row.bench] = {r.key: r for r in known}
            self._rows[row.bench].pop(row.key, None)
            self._rows[row.bench][row.key] = row
            write_rows(self.path(row.bench), self._rows[row.bench].values())

    def path(self, bench: str) -> Path:
        """Return the file of a benchmark."""
        return self.folder / f"{bench}.csv"


def write_rows(path: Path, rows: Iterable[AnyRow]) -> None:
    """Replace the content of a file, atomically."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    columns = columns_of(kind_of(path))
    writer.writerow(columns)
    writer.writerows([_text(getattr(row, name)) for name in columns] for row in rows)
    replace_file(path, text.getvalue().encode())


def read_rows(path: Path) -> list[Any]:
    """Read the rows of a file; a missing file has none.

    Raises
    ------
    InputError
        If the columns are not those of a benchmark.
    """
    if not path.exists():
        return []
    kind = kind_of(path)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != columns_of(kind):
            raise InputError(
                f"{path} is not a benchmark result: its columns are {reader.fieldnames}"
            )
        return [_parse(kind, record) for record in reader]


def read_folder(folder: Path) -> list[Any]:
    """Read the rows of all files of a folder; raise an `InputError` if there are none."""
    rows = [row for path in sorted(folder.glob("*.csv")) for row in read_rows(path)]
    if not rows:
        raise InputError(f"{folder} holds no benchmark results")
    return rows


def _parse(kind: type[AnyRow], record: dict[str, str]) -> AnyRow:
    row = kind(**{field.name: PARSERS[field.type](record[field.name]) for field in fields(kind)})
    if isinstance(row, Row):  # older files say "pass" without an error
        return replace(row, gate=gate_of(row.ms_p50, row.error))
    return row


PARSERS: dict[Any, Callable[[str], Any]] = {  # by annotation
    "str": str,
    "int": int,
    "float | None": lambda text: float(text) if text else None,
}


def _text(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def with_threads(impl: str, threads: int) -> str:
    """Name an implementation on a number of threads."""
    return f"{impl} x{threads}"


def with_bytes(case: str, n_bytes: int) -> str:
    """Name a bandwidth case after a case and the bytes that it moves at least."""
    return f"{case}@{n_bytes}B"


def bytes_of(case: str) -> int:
    """Return the number of bytes in a name made by `with_bytes`."""
    match = re.fullmatch(r".+@(\d+)B", case)
    if match is None:
        raise InputError(f"the bandwidth case {case!r} does not name the bytes that it moves")
    return int(match.group(1))
