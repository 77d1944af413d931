"""Alignments of many pairs: scores, CIGAR strings, rows of letters, SAM and tables."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import torch
from torch import Tensor

from mlff_triton._common.files import replacing
from mlff_triton.bio.alignment import cigar, sam
from mlff_triton.bio.alignment.rows import Rows
from mlff_triton.bio.alignment.sequences import Alphabet, Sequences
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.sequence_pairs import MATCH, Aligned, Runs

Part = TypeVar("Part")

SHOWN = 10  # alignments in the text of all


class Alignment(NamedTuple):
    """One alignment; what only a traceback finds is None without one.

    Attributes
    ----------
    query, target : str
        Names.
    score : int
        Of the alignment.
    query_begin, query_end, target_begin, target_end : int or None
        Letters that are aligned, as in slices.
    identity : float or None
        Equal letters over columns.
    cigar : str or None
        Operations ``=XID``.
    """

    query: str
    target: str
    score: int
    query_begin: int | None = None
    query_end: int | None = None
    target_begin: int | None = None
    target_end: int | None = None
    identity: float | None = None
    cigar: str | None = None


class Alignments:
    """n alignments, as `align` returns them; an index, or iterating, gives an `Alignment`.

    With ``pairs="all"`` the pairs of a query follow one another. What needs a traceback raises an
    `InputError` without one.

    Parameters
    ----------
    aligned : Aligned
        Scores, and operations if there is a traceback.
    queries, targets : Sequences
        What was aligned.
    pairs : {"zip", "all"}
        Which of them make a pair.
    alphabet : Alphabet
        Letters of their codes.
    """

    def __init__(
        self,
        aligned: Aligned,
        queries: Sequences,
        targets: Sequences,
        pairs: str,
        alphabet: Alphabet,
    ) -> None:
        self._aligned, self._alphabet, self._pairs = aligned, alphabet, pairs
        self.queries, self.targets = queries, targets

    @property
    def score(self) -> Tensor:
        """Scores int32 [n], on the device that they were computed on."""
        return self._aligned.score

    @property
    def begin(self) -> Tensor:
        """How many letters of query and target precede the alignment, int32 [n, 2]."""
        return _traced(self._aligned.begin)

    @property
    def end(self) -> Tensor:
        """How many letters of query and target precede its end, int32 [n, 2]."""
        return _traced(self._aligned.end)

    @property
    def runs(self) -> Runs:
        """Operations of all alignments, and how often each is repeated."""
        return _traced(self._aligned.runs)

    @property
    def has_traceback(self) -> bool:
        """Whether there is more than scores."""
        return self._aligned.runs is not None

    @cached_property
    def cigar(self) -> list[str]:
        """CIGAR strings of ``=XID``; empty if nothing is aligned."""
        return cigar.cigars(self.runs)

    @cached_property
    def cigar_m(self) -> list[str]:
        """CIGAR strings of ``MID``, which do not tell equal letters from others."""
        return cigar.cigars(cigar.without_mismatches(self.runs), "MMID")

    @property
    def identity(self) -> Tensor:
        """Equal letters over columns, gaps included, float64 [n]; NaN if nothing is aligned."""
        return cigar.columns(self.runs, (MATCH,)).double() / cigar.columns(self.runs)

    @property
    def query_names(self) -> list[str]:
        """Name of each pair's query; its place in the list if it has none."""
        repeats = len(self.targets.names) if self._pairs == "all" else 1
        return [str(name) for name in self.queries.names for _ in range(repeats)]

    @property
    def target_names(self) -> list[str]:
        """Name of each pair's target; its place in the list if it has none."""
        repeats = len(self.queries.names) if self._pairs == "all" else 1
        return [str(name) for name in self.targets.names] * repeats

    def places(self, i: int) -> tuple[int, int]:
        """Which query and which target pair i is of."""
        i = range(len(self))[i]
        return divmod(i, len(self.targets.names)) if self._pairs == "all" else (i, i)

    def is_first(self, i: int) -> bool:
        """Whether no pair before has this query."""
        return self._pairs == "zip" or self.places(i)[1] == 0

    def query_letters(self, i: int) -> str:
        """Letters of a pair's query, as the matrix has them."""
        return self._letters[0][self.places(i)[0]]

    def target_letters(self, i: int) -> str:
        """Letters of a pair's target, as the matrix has them."""
        return self._letters[1][self.places(i)[1]]

    def aligned(self, i: int) -> Rows:
        """Rows of letters of pair i, with gaps."""
        i = range(len(self))[i]
        host = self._host
        begin, end, runs = _traced(host.begin), _traced(host.end), _traced(host.runs)
        (a, b), (a_end, b_end) = begin[i].tolist(), end[i].tolist()
        part = slice(int(runs.start[i]), int(runs.start[i + 1]))
        operation = runs.operation[part].repeat_interleave(runs.length[part].long())
        return Rows.of(self.query_letters(i)[a:a_end], self.target_letters(i)[b:b_end], operation)

    def pretty(self, i: int, width: int = 60) -> str:
        """Pair i as text: names, score and, with a traceback, rows of letters.

        Parameters
        ----------
        i : int
            Which pair.
        width : int
            Columns of a line.
        """
        query, target = self.places(i)
        names = str(self.queries.names[query]), str(self.targets.names[target])
        title = f"{' / '.join(names)}: score {int(self._host.score[i])}"
        if not self.has_traceback:
            return title
        rows = self.aligned(i)
        title += f", identity {rows.middle.count('|')}/{len(rows.middle)}"
        a, b = _traced(self._host.begin)[i].tolist()
        return "\n".join([title, *rows.lines(names, (a, b), width)])

    def to_sam(self, target: str | Path | TextIO, *, hard_clip: bool = False) -> None:
        """Write SAM, with CIGAR strings of ``=XID`` and tags AS (score) and NM (distance).

        Of several alignments of a query the first is the primary one. A query of which no letter
        faces one of its target is unmapped.

        Parameters
        ----------
        target : path or text file
            A path gets the whole file, or nothing if it fails.
        hard_clip : bool
            Whether letters that are not aligned are left out, instead of marked as such.

        Raises
        ------
        InputError
            If SAM cannot have these names.
        OutputError
            If it cannot be written.
        """
        lengths = self.targets.length.tolist()
        head = sam.header(zip(map(str, self.targets.names), lengths, strict=True))
        text = "".join([*head, *sam.records(self, hard_clip=hard_clip)])
        if isinstance(target, str | Path):
            with replacing(Path(target)) as file:
                file.write(text.encode())
        else:
            target.write(text)

    def to_pandas(self) -> Any:
        """A DataFrame with the fields of `Alignment` as columns, and a row a pair.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        if find_spec("pandas") is None:
            raise InputError("to_pandas needs pandas: pip install pandas")
        import pandas as pd

        return pd.DataFrame(dict(zip(Alignment._fields, self._columns, strict=False)))

    def __len__(self) -> int:
        return len(self.score)

    def __getitem__(self, i: int) -> Alignment:
        return Alignment(*(column[i] for column in self._columns))

    def __iter__(self) -> Iterator[Alignment]:
        return map(Alignment, *self._columns)

    def __repr__(self) -> str:
        return f"<{len(self)} alignments{' with traceback' * self.has_traceback}>"

    def __str__(self) -> str:
        texts = [self.pretty(i) for i in range(min(len(self), SHOWN))]
        if len(self) > SHOWN:
            texts.append(f"... and {len(self) - SHOWN} more")
        return ("\n\n" if self.has_traceback else "\n").join(texts)

    @cached_property
    def _columns(self) -> list[list[Any]]:
        """Values of the fields of `Alignment`, as many as there are."""
        found = [self.query_names, self.target_names, self._host.score.tolist()]
        if self.has_traceback:
            begin, end = _traced(self._host.begin), _traced(self._host.end)
            places = [begin[:, 0], end[:, 0], begin[:, 1], end[:, 1], self.identity]
            found += [*(place.tolist() for place in places), self.cigar]
        return found

    @cached_property
    def _host(self) -> Aligned:
        """All numbers on the CPU, for those who ask for one pair after the other."""
        return moved(self._aligned, torch.device("cpu"))

    @cached_property
    def _letters(self) -> list[list[str]]:
        """Letters of queries and of targets."""
        return [self._alphabet.decode(of) for of in (self.queries, self.targets)]


def moved(aligned: Aligned, device: torch.device) -> Aligned:
    """The same on a device."""
    score, begin, end, runs = aligned
    if begin is None or end is None or runs is None:
        return Aligned(score.to(device), None, None, None)
    runs = Runs(*(part.to(device) for part in runs))
    return Aligned(score.to(device), begin.to(device), end.to(device), runs)


def _traced(part: Part | None) -> Part:
    if part is None:
        raise InputError("there are only scores: align with traceback=True")
    return part
