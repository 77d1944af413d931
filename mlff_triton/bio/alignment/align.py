"""Public function `align`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from mlff_triton._common.text import shortened
from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.bio.alignment.backends import Task, choose_backend, compute, find_devices
from mlff_triton.bio.alignment.identity import matched_by_symbols
from mlff_triton.bio.alignment.result import Alignments, moved
from mlff_triton.bio.alignment.scoring import MATCH, MISMATCH, Scoring
from mlff_triton.bio.alignment.sequences import Alphabet, Sequences
from mlff_triton.errors import InputError
from mlff_triton.kernels.alignment.types import PAD, Aligned, Free, Pairs, join_runs

SIDES = ("query_begin", "query_end", "target_begin", "target_end")
MODES = {
    "global": Free(),
    "local": Free(anywhere=True),
    "semiglobal": Free(**dict.fromkeys(SIDES, True)),
}


@with_own_settings
def align(
    queries: Any,
    targets: Any,
    *,
    mode: str | Collection[str] = "global",
    matrix: Any = None,
    match: int = MATCH,
    mismatch: int = MISMATCH,
    gap_open: int | None = None,
    gap_extend: int | None = None,
    pairs: str = "zip",
    traceback: bool = False,
    band: int | None = None,
    unknown: str | None = None,
    device: str | torch.device = "auto",
    backend: str = "auto",
) -> Alignments:
    """Align pairs of DNA or protein sequences exactly, with affine gap penalties.

    Scores follow parasail and EMBOSS: a gap of length k costs ``gap_open + (k - 1) gap_extend``.
    Biopython's ``PairwiseAligner`` takes the same two numbers with a minus sign. The penalties that
    BLAST calls 11 and 1 are 12 and 1 here, because BLAST adds both for the first position of a gap.
    Upper and lower case are equivalent. Control characters in names become escape sequences.

    Parameters
    ----------
    queries, targets : path, iterable of sequences, or (tensor, lengths)
        Sequences in one of these forms:

        - the path of a FASTA or FASTQ file, gzipped or not;
        - an iterable of str, bytes, or Biopython's Seq or SeqRecord;
        - a dict from names to sequences;
        - codes, an integer tensor [n, L], with lengths [n]. A code is a row of the matrix, or an
          index into ACGTN without one.
    mode : {"global", "local", "semiglobal"} or collection of str
        "global" aligns both sequences from end to end (parasail's ``nw``), "local" finds the
        best-scoring parts (``sw``), and "semiglobal" leaves all ends of both sequences free of gap
        penalties (``sg``). To free some ends only, name them: "query_begin", "query_end",
        "target_begin", "target_end". For example, ``mode=("target_begin", "target_end")`` finds the
        whole query within its target. As in parasail, at least one residue or base of each sequence
        precedes the free ends, so sequences without anything in common score less than zero.
    matrix : str or [A, A] array, optional
        Symmetric substitution matrix of integers: a name known to Biopython, such as "BLOSUM62" or
        "NUC.4.4"; one of Biopython's arrays; a DataFrame with residues or bases as columns; or an
        array for ACGT, for ACGTN, for the 20 amino acids ARNDCQEGHILKMFPSTWYV, or for these and
        BZX*.
    match, mismatch : int
        Scores of equal and different bases, used without a matrix. N matches nothing, not even N.
    gap_open, gap_extend : int, optional
        Gap penalties, with ``0 <= gap_extend <= gap_open``. Equal penalties make gaps linear. By
        default, 11 and 1 with a matrix that has all amino acids, and otherwise 5 and 2.
    pairs : {"zip", "all"}
        "zip" pairs the k-th query with the k-th target. "all" pairs every query with every target,
        such that pair ``k * len(targets) + l`` is query k with target l.
    traceback : bool
        If True, compute alignments as well as scores. Ties between equally good alignments are
        broken in a fixed order, described in
        `mlff_triton.kernels.alignment.reference.alignment.alignment`.
    band : int, optional
        Use only alignments in which the positions in query and target never differ by more than
        this.
    unknown : str, optional
        Residue or base whose scores symbols have that are missing from the matrix, such as "X" or
        "N". They remain what they are: different ones are a mismatch. By default, such symbols
        raise an error. Without a matrix of proteins, U is read as T, and proteins are refused in
        any case.
    device : str or torch.device
        "auto", "cpu", "cuda", "cuda:1" and so on. "all" distributes the pairs over all GPUs and
        collects the results on the first.
    backend : {"auto", "triton", "parasail", "torch"}
        "triton" runs fused kernels on a GPU. "parasail" computes scores on the CPU, and leaves to
        "torch" what it does not support: tracebacks, bands, three free ends, empty sequences.
        "torch" is the reference, on any device. All of them return the same results. "auto" takes
        the first one that is available.

    Returns
    -------
    Alignments
        Results of all pairs: ``.score`` is int32 [n]; with a traceback, also CIGAR strings,
        coordinates, identities and SAM.

    Raises
    ------
    InputError
        If a sequence cannot be read or has a symbol missing from the matrix, if there are no
        sequences, if "zip" gets unequal numbers of queries and targets, if scores may overflow
        int32, if a traceback without a kernel needs a table of more than 4 GiB, or if an option is
        invalid.
    BackendError
        If the backend or device is unavailable.

    References
    ----------
    S. Needleman and C. Wunsch, https://doi.org/10.1016/0022-2836(70)90057-4; T. Smith and M.
    Waterman, https://doi.org/10.1016/0022-2836(81)90087-5; O. Gotoh,
    https://doi.org/10.1016/0022-2836(82)90398-9; J. Daily (parasail),
    https://doi.org/10.1186/s12859-016-0930-z.

    Examples
    --------
    >>> found = align(["ACGTTA"], ["ACTTA"], traceback=True, device="cpu")
    >>> found.score.tolist(), found.cigar
    ([5], ['2=1I3='])
    >>> print(found)
    0 / 0: score 5, identity 5/6
    <BLANKLINE>
    0 1 ACGTTA 6
        ||-|||
    0 1 AC-TTA 5
    """
    free = _free(mode)
    if pairs not in ("zip", "all"):
        raise InputError(f"pairs={pairs!r} is unknown: use 'zip' or 'all'")
    scoring = Scoring.of(matrix, match, mismatch, gap_open, gap_extend)
    devices = find_devices(device, backend)
    backend = choose_backend(backend, devices[0])
    encoder = devices[0] if devices[0].type == "cuda" else None
    alphabet = Alphabet(scoring.letters, unknown, device=encoder)
    read_queries = alphabet.read(queries, "query")
    read_targets = read_queries if targets is queries else alphabet.read(targets, "target")
    if pairs == "zip":
        _check_partners(read_queries, read_targets)
    band = _checked_band(read_queries, read_targets, pairs, band, free)
    _check_range(read_queries, read_targets, scoring)
    task = Task(scoring.matrix, scoring.gaps, free, band, traceback)
    shares = _shares(read_queries, read_targets, pairs, len(devices))
    work = _Work(read_queries, read_targets, pairs, alphabet, backend, task)
    if len(shares) == 1:
        parts = [work.of(shares[0], devices[0])]
    else:
        with ThreadPoolExecutor(len(shares)) as pool:  # one thread waits for each device
            parts = list(pool.map(work.of, shares, devices))
    return Alignments(_gathered(parts), read_queries, read_targets, pairs, alphabet)


@dataclass(frozen=True)
class _Work:
    """The alignments of all pairs, which several devices may share."""

    queries: Sequences
    targets: Sequences
    pairs: str
    alphabet: Alphabet
    backend: str
    task: Task

    def of(self, share: tuple[int, int], device: torch.device) -> Aligned:
        """Align the pairs ``share[0] : share[1]`` on a device."""
        one, other = self.queries, self.targets
        if self.pairs == "zip":
            one = self.queries.part(*share)
            other = one if self.targets is self.queries else self.targets.part(*share)
        pair = _pair_up(one, other, self.pairs, *share, device)
        found = compute(self.backend, pair, self.task)
        alphabet = self.alphabet
        if not self.task.traceback or not any(map(alphabet.is_ambiguous, (one, other))):
            return found
        return matched_by_symbols(found, pair, _joined(one, other, device, alphabet.symbols))


def _free(mode: str | Collection[str]) -> Free:
    """Return the free ends of a mode."""
    if isinstance(mode, str) and mode in MODES:
        return MODES[mode]
    ends = set(mode) if isinstance(mode, Collection) and not isinstance(mode, str) else {mode}
    if not ends <= set(SIDES):
        raise InputError(
            f"mode={mode!r} is unknown: use one of {', '.join(MODES)}, or a collection of free "
            f"ends: {', '.join(SIDES)}"
        )
    return Free(**dict.fromkeys(ends, True))


def _check_partners(queries: Sequences, targets: Sequences) -> None:
    """Raise unless every query has a target."""
    n, others = len(queries.names), len(targets.names)
    if n != others:
        kind, rest = ("query", queries) if n > others else ("target", targets)
        name = rest.names[min(n, others)]
        raise InputError(
            f"{n} queries and {others} targets cannot be paired one to one: {kind} "
            f"{shortened(name)} has no partner. Use pairs='all' to align every query with every "
            "target"
        )


def _checked_band(
    queries: Sequences, targets: Sequences, pairs: str, band: Any, free: Free
) -> int | None:
    """Return the band, at most as wide as a table, or raise if a pair does not fit into it."""
    if band is None:
        return None
    if not isinstance(band, Integral) or band < 0:
        raise InputError(f"band={band!r} is not valid: use an integer of at least 0")
    sides = (
        (queries, targets, "query", free.query_end or free.anywhere),
        (targets, queries, "target", free.target_end or free.anywhere),
    )
    for long, short, kind, is_free in sides:
        is_zip = pairs == "zip"
        longest = int((long.length - short.length if is_zip else long.length).argmax())
        partner = longest if is_zip else int(short.length.argmin())
        excess = int(long.length[longest] - short.length[partner])
        if excess > band and not is_free:
            raise InputError(
                f"{kind} {long.names[longest]} is {excess} residues or bases longer than its "
                f"partner {short.names[partner]}, more than band={band} allows: use a wider band"
            )
    return min(int(band), int(max(queries.length.max(), targets.length.max())))


def _check_range(queries: Sequences, targets: Sequences, scoring: Scoring) -> None:
    """Raise if scores may overflow int32."""
    most = int(queries.length.max() + targets.length.max())
    largest = max(int(scoring.matrix.abs().max()), scoring.gaps.open)
    if most * largest >= 2**30:
        raise InputError(
            f"scores of up to {largest} over {most} residues or bases do not fit in int32: use "
            "smaller scores and gap penalties"
        )


def _shares(
    queries: Sequences, targets: Sequences, pairs: str, count: int
) -> list[tuple[int, int]]:
    """Divide the pairs into at most `count` ranges with about the same number of cells each.

    Returns
    -------
    list of (int, int)
        First pair of each range, and the one after its last.
    """
    n = len(queries.names) * (len(targets.names) if pairs == "all" else 1)
    if count == 1:
        return [(0, n)]
    height, width = queries.length + 1, targets.length + 1
    cells = (height[:, None] * width).flatten() if pairs == "all" else height * width
    done = cells.cumsum(0)
    goals = done[-1] * torch.arange(1, count) // count
    cuts = [0, *torch.searchsorted(done, goals).tolist(), n]
    return [(a, b) for a, b in pairwise(cuts) if a < b]


def _pair_up(
    queries: Sequences,
    targets: Sequences,
    pairs: str,
    first: int,
    last: int,
    device: torch.device,
) -> Pairs:
    """Move the pairs ``first : last`` to a device. Sequences that both sides share move once.

    With "zip", the sequences are those of these pairs alone.
    """
    n = torch.arange(first, last, device=device)
    query, target = n // len(targets.names), n % len(targets.names)
    if pairs == "zip":
        query = target = n - first
    offset = PAD if targets is queries else PAD + len(queries.letters)
    return Pairs(
        _joined(queries, targets, device, attrgetter("letters")),
        queries.start.to(device)[query] + PAD,
        queries.length.to(device)[query],
        targets.start.to(device)[target] + offset,
        targets.length.to(device)[target],
    )


def _joined(
    queries: Sequences,
    targets: Sequences,
    device: torch.device,
    values: Callable[[Sequences], Tensor],
) -> Tensor:
    """Join values of the symbols of all sequences on a device, between unused bytes."""
    padding = torch.zeros(PAD, dtype=torch.uint8, device=device)
    sides = [queries] if targets is queries else [queries, targets]
    return torch.cat([padding, *(values(side).to(device) for side in sides), padding])


def _gathered(parts: list[Aligned]) -> Aligned:
    """Concatenate the alignments of all shares, on the device of the first."""
    if len(parts) == 1:
        return parts[0]
    parts = [moved(part, parts[0].score.device) for part in parts]
    score = torch.cat([part.score for part in parts])
    runs = [part.runs for part in parts if part.runs]
    if not runs:
        return Aligned(score, None, None, None)
    begin = torch.cat([part.begin for part in parts if part.begin is not None])
    end = torch.cat([part.end for part in parts if part.end is not None])
    return Aligned(score, begin, end, join_runs(runs))
