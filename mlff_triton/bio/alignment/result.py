"""Alignments of many pairs: scores, coordinates, CIGAR strings, text, SAM and tables."""

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
from mlff_triton.kernels.alignment.types import (
    DELETION,
    INSERTION,
    MATCH,
    MISMATCH,
    Aligned,
    Runs,
)

Part = TypeVar("Part")

SHOWN = 10  # alignments that str() shows


class Alignment(NamedTuple):
    """One alignment. Without a traceback, all fields after the score are None.

    Attributes
    ----------
    query, target : str
        Names of the sequences.
    score : int
        Alignment score.
    query_begin, query_end, target_begin, target_end : int or None
        Aligned range of each sequence, counted from 0, as in slices: the query's aligned part is
        ``query[query_begin:query_end]``.
    identity : float or None
        Matches divided by alignment columns, gaps included; NaN if nothing is aligned.
    cigar : str or None
        CIGAR string with the operations ``=XID``.
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
    """Alignments of n pairs, as returned by `mlff_triton.bio.align`.

    Indexing and iterating give `Alignment` objects, and ``len`` gives n. With ``pairs="all"``, the
    pairs of one query follow one another. Control characters in names become escape sequences.
    Properties and methods that need a traceback raise an `InputError` if the alignments were
    computed without one.

    Parameters
    ----------
    aligned : Aligned
        Scores, and CIGAR operations if there is a traceback.
    queries, targets : Sequences
        Aligned sequences.
    pairs : {"zip", "all"}
        Pairing of queries and targets.
    alphabet : Alphabet
        Alphabet of the sequences' codes.

    Examples
    --------
    >>> found = align(["ACGTTA", "GG"], ["ACTTA", "GGC"], traceback=True, device="cpu")
    >>> found.score.tolist(), found.cigar, found.cigar_m
    ([5, -1], ['2=1I3=', '2=1D'], ['2M1I3M', '2M1D'])
    >>> found[1].target_begin, found[1].target_end
    (0, 3)
    >>> print(found)
    0 / 0: score 5, identity 5/6
    <BLANKLINE>
    0 1 ACGTTA 6
        ||-|||
    0 1 AC-TTA 5
    <BLANKLINE>
    1 / 1: score -1, identity 2/3
    <BLANKLINE>
    1 1 GG- 2
        ||-
    1 1 GGC 3
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
        """Alignment scores, int32 [n], on the device that computed them."""
        return self._aligned.score

    @property
    def begin(self) -> Tensor:
        """First aligned positions of query and target, counted from 0, int32 [n, 2]."""
        return _traced(self._aligned.begin)

    @property
    def end(self) -> Tensor:
        """Positions of query and target after the last aligned ones, int32 [n, 2]."""
        return _traced(self._aligned.end)

    @property
    def runs(self) -> Runs:
        """CIGAR operations of all alignments as tensors, in run-length encoding."""
        return _traced(self._aligned.runs)

    @property
    def has_traceback(self) -> bool:
        """True if alignments were computed, False if there are only scores."""
        return self._aligned.runs is not None

    @cached_property
    def cigar(self) -> list[str]:
        """CIGAR strings with the operations ``=XID``; empty where nothing is aligned."""
        return cigar.cigars(self.runs)

    @cached_property
    def cigar_m(self) -> list[str]:
        """CIGAR strings with the operations ``MID``, where M is a match or a mismatch."""
        return cigar.cigars(cigar.without_mismatches(self.runs), "MMID")

    @property
    def identity(self) -> Tensor:
        """Fraction of alignment columns, gaps included, that are matches, float64 [n].

        NaN where nothing is aligned.
        """
        return cigar.columns(self.runs, (MATCH,)).double() / cigar.columns(self.runs)

    @property
    def query_names(self) -> list[str]:
        """Name of each pair's query, or its index if it has no name."""
        repeats = len(self.targets.names) if self._pairs == "all" else 1
        return [str(name) for name in self.queries.names for _ in range(repeats)]

    @property
    def target_names(self) -> list[str]:
        """Name of each pair's target, or its index if it has no name."""
        repeats = len(self.queries.names) if self._pairs == "all" else 1
        return [str(name) for name in self.targets.names] * repeats

    def places(self, i: int) -> tuple[int, int]:
        """Return the indices of pair i's query and target."""
        i = range(len(self))[i]
        return divmod(i, len(self.targets.names)) if self._pairs == "all" else (i, i)

    def is_first(self, i: int) -> bool:
        """Return True if pair i is the first one of its query."""
        return self._pairs == "zip" or self.places(i)[1] == 0

    def query_letters(self, i: int) -> str:
        """Return the query of pair i as text, in the symbols of the matrix."""
        return self._letters[0][self.places(i)[0]]

    def target_letters(self, i: int) -> str:
        """Return the target of pair i as text, in the symbols of the matrix."""
        return self._letters[1][self.places(i)[1]]

    def aligned(self, i: int) -> Rows:
        """Return the aligned sequences of pair i as rows of text with gaps."""
        i = range(len(self))[i]
        host = self._host
        begin, end, runs = _traced(host.begin), _traced(host.end), _traced(host.runs)
        (a, b), (a_end, b_end) = begin[i].tolist(), end[i].tolist()
        part = slice(int(runs.start[i]), int(runs.start[i + 1]))
        operation = runs.operation[part].repeat_interleave(runs.length[part].long())
        return Rows.of(self.query_letters(i)[a:a_end], self.target_letters(i)[b:b_end], operation)

    def pretty(self, i: int, width: int = 60) -> str:
        """Format pair i as text: names, score and, with a traceback, the aligned sequences.

        Parameters
        ----------
        i : int
            Index of the pair.
        width : int
            Alignment columns per line.
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

    def sam_records(self, *, hard_clip: bool = False, has_primary: bool = False) -> Iterator[str]:
        """Yield the line of each alignment in SAM.

        Parameters
        ----------
        hard_clip : bool
            Same as for `to_sam`.
        has_primary : bool
            If True, these queries already have a primary alignment.

        Raises
        ------
        InputError
            If there is no traceback, or if SAM does not allow the name of a query.
        """
        bounds = torch.cat([self.begin, self.end], 1).tolist()
        is_mapped = (cigar.columns(self.runs, (MATCH, MISMATCH)) > 0).tolist()
        distances = cigar.columns(self.runs, (MISMATCH, INSERTION, DELETION)).tolist()
        for k, (query, target, score, *_) in enumerate(self):
            begin, target_begin, end, _ = bounds[k]
            hit = None
            if is_mapped[k]:
                is_primary = self.is_first(k) and not has_primary
                place = target, target_begin, begin, end, self.cigar[k]
                hit = sam.Hit(*place, distances[k], is_primary)
            yield sam.record(query, self.query_letters(k), score, hit, hard_clip=hard_clip)

    def to_sam(self, target: str | Path | TextIO, *, hard_clip: bool = False) -> None:
        """Write SAM, with queries as reads and targets as references.

        CIGAR strings have the operations ``=XID``, and the tags are AS (score) and NM (edit
        distance). The first alignment of a query is its primary one. A query without matches and
        mismatches is unmapped.

        Parameters
        ----------
        target : path or text file
            Destination. A file at a path appears only when it is complete.
        hard_clip : bool
            If True, omit unaligned residues or bases instead of soft-clipping them.

        Raises
        ------
        InputError
            If there is no traceback, if two different targets share a name, or if SAM does not
            allow the name of a sequence.
        OutputError
            If the file cannot be written.
        """
        targets = sam.Targets()
        for name, letters in zip(self.targets.names, self._letters[1], strict=True):
            targets.add(str(name), letters)
        text = "".join([*targets.header(), *self.sam_records(hard_clip=hard_clip)])
        if isinstance(target, str | Path):
            with replacing(Path(target)) as file:
                file.write(text.encode())
        else:
            target.write(text)

    def to_pandas(self) -> Any:
        """Return a DataFrame with one row per pair and the fields of `Alignment` as columns.

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
        """Values of the fields of `Alignment`: three without a traceback, else all."""
        found = [self.query_names, self.target_names, self._host.score.tolist()]
        if self.has_traceback:
            begin, end = _traced(self._host.begin), _traced(self._host.end)
            tensors = [begin[:, 0], end[:, 0], begin[:, 1], end[:, 1], self.identity]
            found += [*(tensor.tolist() for tensor in tensors), self.cigar]
        return found

    @cached_property
    def _host(self) -> Aligned:
        """Results on the CPU, for access to one pair after another."""
        return moved(self._aligned, torch.device("cpu"))

    @cached_property
    def _letters(self) -> list[list[str]]:
        """Queries and targets as text."""
        return [self._alphabet.decode(side) for side in (self.queries, self.targets)]


def moved(aligned: Aligned, device: torch.device) -> Aligned:
    """Move results to a device."""
    score, begin, end, runs = aligned
    if begin is None or end is None or runs is None:
        return Aligned(score.to(device), None, None, None)
    runs = Runs(*(part.to(device) for part in runs))
    return Aligned(score.to(device), begin.to(device), end.to(device), runs)


def _traced(part: Part | None) -> Part:
    """Return a part of the results, or raise if it was not computed."""
    if part is None:
        raise InputError("only scores were computed: align with traceback=True")
    return part
