"""Alignments as SAM (https://samtools.github.io/hts-specs/SAMv1.pdf), with queries as reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mlff_triton._common.text import shortened
from mlff_triton._common.version import __version__
from mlff_triton.errors import InputError

UNMAPPED, SECONDARY = 4, 256
QUALITY = 255  # unknown mapping quality
READ = re.compile(r"[!-?A-~]{1,254}")
REFERENCE = re.compile(r"[0-9A-Za-z!#$%&+./:;?@^_|~-][0-9A-Za-z!#$%&*+./:;=?@^_|~-]*")


class Targets:
    """Names of targets. Targets with the same name must be the same sequence.

    Attributes
    ----------
    count : int
        Number of targets, repeated ones included.
    """

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[str, tuple[int, int]] = {}  # length, and hash of the sequence

    def add(self, name: str, sequence: str | bytes) -> None:
        """Add a target.

        Raises
        ------
        InputError
            If another sequence has the same name.
        """
        self.count += 1
        found = len(sequence), hash(sequence.upper())
        if self._known.setdefault(name, found) != found:
            raise InputError(
                f"two targets are called {shortened(name)}: rename one to tell them apart"
            )

    def header(self) -> Iterator[str]:
        """Yield the lines of the header.

        Raises
        ------
        InputError
            If SAM does not allow a name.
        """
        yield "@HD\tVN:1.6\tSO:unsorted\n"
        for name, (length, _) in self._known.items():
            if not REFERENCE.fullmatch(name):
                raise InputError(
                    f"SAM does not allow the target name {shortened(name)!r}: rename it"
                )
            if length:
                yield f"@SQ\tSN:{name}\tLN:{length}\n"
        yield f"@PG\tID:mlff-triton\tPN:mlff-triton\tVN:{__version__}\n"


class Hit(NamedTuple):
    """The position of a query on a target.

    Attributes
    ----------
    target : str
        Name of the target.
    target_begin : int
        First aligned position of the target, counted from 0.
    begin, end : int
        Aligned range of the query, as in slices.
    cigar : str
        CIGAR string of the aligned range.
    distance : int
        Number of mismatches, inserted and deleted symbols.
    is_primary : bool
        True for the alignment that stands for the query.
    """

    target: str
    target_begin: int
    begin: int
    end: int
    cigar: str
    distance: int
    is_primary: bool


def record(query: str, letters: str, score: int, hit: Hit | None, *, hard_clip: bool) -> str:
    """Return the line of one alignment.

    Parameters
    ----------
    query, letters : str
        Name and symbols of the query.
    score : int
        Alignment score.
    hit : Hit or None
        Its place, or None if the query is unmapped.
    hard_clip : bool
        If True, omit unaligned residues or bases instead of soft-clipping them.

    Raises
    ------
    InputError
        If SAM does not allow the name.
    """
    if not READ.fullmatch(query):
        raise InputError(f"SAM does not allow the query name {shortened(query)!r}: rename it")
    mapping, tags = f"{UNMAPPED}\t*\t0\t0\t*", f"AS:i:{score}"
    if hit is not None:
        clip = "H" if hard_clip else "S"
        clipped = hit.begin, len(letters) - hit.end
        before, after = (f"{n}{clip}" if n else "" for n in clipped)
        letters = letters[hit.begin : hit.end] if hard_clip else letters
        flag = 0 if hit.is_primary else SECONDARY
        cigar = f"{before}{hit.cigar}{after}"
        mapping = f"{flag}\t{hit.target}\t{hit.target_begin + 1}\t{QUALITY}\t{cigar}"
        tags += f"\tNM:i:{hit.distance}"
    return f"{query}\t{mapping}\t*\t0\t0\t{letters or '*'}\t*\t{tags}\n"
