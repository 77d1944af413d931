"""Alignments as SAM (https://samtools.github.io/hts-specs/SAMv1.pdf), with queries as reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from mlff_triton._common.text import shortened
from mlff_triton._common.version import __version__
from mlff_triton.bio.alignment import cigar
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.sequence_pairs import DELETION, INSERTION, MATCH, MISMATCH

if TYPE_CHECKING:
    from mlff_triton.bio.alignment.result import Alignments

UNMAPPED, SECONDARY = 4, 256
QUALITY = 255  # unknown mapping quality
READ = re.compile(r"[!-?A-~]{1,254}")
REFERENCE = re.compile(r"[0-9A-Za-z!#$%&+./:;?@^_|~-][0-9A-Za-z!#$%&*+./:;=?@^_|~-]*")


class Targets:
    """Names of targets. Those of one name must be the same sequence.

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


def records(
    alignments: Alignments, *, hard_clip: bool = False, has_primary: bool = False
) -> Iterator[str]:
    """Yield one line per alignment.

    Parameters
    ----------
    alignments : Alignments
        Alignments with a traceback.
    hard_clip : bool
        If True, omit unaligned residues or bases instead of soft-clipping them.
    has_primary : bool
        If True, these queries already have a primary alignment. By default, the first alignment of
        each query is the primary one.

    Raises
    ------
    InputError
        If SAM does not allow the name of a query.
    """
    runs, clip = alignments.runs, "H" if hard_clip else "S"
    bounds = torch.cat([alignments.begin, alignments.end], 1).tolist()
    is_mapped = (cigar.columns(runs, (MATCH, MISMATCH)) > 0).tolist()
    distances = cigar.columns(runs, (MISMATCH, INSERTION, DELETION)).tolist()
    for k, alignment in enumerate(alignments):
        name, target, score = alignment[:3]
        begin, target_begin, end, _ = bounds[k]
        if not READ.fullmatch(name):
            raise InputError(f"SAM does not allow the query name {shortened(name)!r}: rename it")
        letters = alignments.query_letters(k)
        if is_mapped[k]:
            before, after = (f"{n}{clip}" if n else "" for n in (begin, len(letters) - end))
            letters = letters[begin:end] if hard_clip else letters
            flag = 0 if alignments.is_first(k) and not has_primary else SECONDARY
            cigar_string = f"{before}{alignment.cigar}{after}"
            mapping = f"{flag}\t{target}\t{target_begin + 1}\t{QUALITY}\t{cigar_string}"
            tags = f"AS:i:{score}\tNM:i:{distances[k]}"
        else:
            mapping, tags = f"{UNMAPPED}\t*\t0\t0\t*", f"AS:i:{score}"
        yield f"{name}\t{mapping}\t*\t0\t0\t{letters or '*'}\t*\t{tags}\n"
