"""The function `align`: from whatever holds sequences to alignments."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from numbers import Integral
from typing import Any

import torch

from mlff_triton.bio.alignment.backends import Task, choose_backend, compute, find_devices
from mlff_triton.bio.alignment.result import Alignments, moved
from mlff_triton.bio.alignment.scoring import MATCH, MISMATCH, Scoring
from mlff_triton.bio.alignment.sequences import Alphabet, Sequences
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.sequence_pairs import PAD, Aligned, Free, Pairs, join_runs

SIDES = ("query_begin", "query_end", "target_begin", "target_end")
MODES = {
    "global": Free(),
    "local": Free(anywhere=True),
    "semiglobal": Free(**dict.fromkeys(SIDES, True)),
}


def align(
    queries: Any,
    targets: Any,
    *,
    mode: str | Collection[str] = "global",
    matrix: Any = None,
    match: int = MATCH,
    mismatch: int = MISMATCH,
    gap_open: int = 5,
    gap_extend: int = 2,
    pairs: str = "zip",
    traceback: bool = False,
    band: int | None = None,
    unknown: str | None = None,
    device: str | torch.device = "auto",
    backend: str = "auto",
) -> Alignments:
    """Align pairs of sequences exactly, with affine gaps.

    Scores and costs are as in parasail and EMBOSS: a gap of k letters costs ``gap_open + (k - 1)
    gap_extend``. (Biopython's ``PairwiseAligner`` has the same two numbers with a minus sign; what
    BLAST calls 11 and 1 is 12 and 1 here, as it adds both for the first letter.) Upper and lower
    case are the same.

    Parameters
    ----------
    queries, targets : path, iterable of sequences, or (tensor, lengths)
        A FASTA file, packed by gzip or not; str, bytes or Biopython's records or Seq; a dict of
        these by name; or codes, integers [n, L] by the order of the matrix (ACGTN without one) with
        lengths [n].
    mode : {"global", "local", "semiglobal"} or collection of str
        "global" takes all of both sequences (parasail's ``nw``), "local" the parts that score best
        (``sw``), "semiglobal" leaves out letters at all ends of either for nothing (``sg``). To
        have this at some ends alone, name them: "query_begin", "query_end", "target_begin" and
        "target_end", as in ``mode=("target_begin", "target_end")`` to find all of a query within
        its target.
    matrix : str or [A, A] array, optional
        Symmetric scores, integers: a name that Biopython knows, such as "BLOSUM62" or "NUC.4.4";
        its Array; a DataFrame with letters as columns; or an array for ACGT, ACGTN, the 20 amino
        acids ARNDCQEGHILKMFPSTWYV or these and BZX*.
    match, mismatch : int
        Scores of bases without a matrix. N matches nothing, not even N.
    gap_open, gap_extend : int
        Costs, ``0 <= gap_extend <= gap_open``; equal ones make linear gaps.
    pairs : {"zip", "all"}
        The k-th query with the k-th target, or every query with every target; then pair
        ``k * len(targets) + l`` is query k with target l.
    traceback : bool
        Whether to find the alignments, and not only their scores. Of equally good ones it is always
        the same: `mlff_triton.kernels.alignment.reference.alignment.alignment` says which.
    band : int, optional
        Use only alignments in which, at every place, the numbers of letters passed of query and of
        target differ by no more.
    unknown : str, optional
        The letter to take others for, such as "N" or "X"; by default others are refused.
    device : str or torch.device
        "auto", "cpu", "cuda", "cuda:1"...; "all" spreads the pairs over all GPUs, and brings
        results to the first.
    backend : {"auto", "triton", "parasail", "torch"}
        Kernels on a GPU; parasail's scores on the CPU, with what it has no functions for
        (tracebacks, bands, three free ends, empty sequences) from the next; or a reference in
        PyTorch. All give the same. "auto" takes the first that can serve.

    Returns
    -------
    Alignments
        Of n pairs: ``.score`` int32 [n], and more with a traceback.

    Raises
    ------
    InputError
        If a sequence cannot be read or has letters that the matrix does not have, if there are no
        sequences, if lists to zip are of different lengths, or if an option makes no sense.
    BackendError
        If the backend or device cannot serve.

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
    """
    free = _free(mode)
    if pairs not in ("zip", "all"):
        raise InputError(f"pairs={pairs!r} is unknown: use 'zip' or 'all'")
    scoring = Scoring.of(matrix, match, mismatch, gap_open, gap_extend)
    devices = find_devices(device, backend)
    backend = choose_backend(backend, devices[0])
    translator = devices[0] if devices[0].type == "cuda" else None
    alphabet = Alphabet(scoring.letters, unknown, device=translator)
    read = alphabet.read(queries, "query")
    others = read if targets is queries else alphabet.read(targets, "target")
    if pairs == "zip":
        _check_partners(read, others)
    _check_band(read, others, pairs, band, free)
    _check_range(read, others, scoring)
    task = Task(scoring.matrix, scoring.gaps, free, band, traceback)
    shares = _shares(read, others, pairs, len(devices))

    def work(share: tuple[int, int], place: torch.device) -> Aligned:
        return compute(backend, _pair_up(read, others, pairs, *share, place), task)

    if len(shares) == 1:
        parts = [work(shares[0], devices[0])]
    else:
        with ThreadPoolExecutor(len(shares)) as pool:  # a thread waits for each device
            parts = list(pool.map(work, shares, devices))
    return Alignments(_gathered(parts), read, others, pairs, alphabet)


def _free(mode: str | Collection[str]) -> Free:
    if isinstance(mode, str) and mode in MODES:
        return MODES[mode]
    ends = set(mode) if isinstance(mode, Collection) and not isinstance(mode, str) else {mode}
    if not ends <= set(SIDES):
        raise InputError(
            f"mode={mode!r} is unknown: use one of {', '.join(MODES)}, or a collection of the ends "
            f"that are free: {', '.join(SIDES)}"
        )
    return Free(**dict.fromkeys(ends, True))


def _check_partners(queries: Sequences, targets: Sequences) -> None:
    n, others = len(queries.names), len(targets.names)
    if n != others:
        kind, rest = ("query", queries) if n > others else ("target", targets)
        name = rest.names[min(n, others)]
        raise InputError(
            f"{n} queries and {others} targets make no pairs, from {kind} {name} on: use "
            "pairs='all' to align each with each"
        )


def _check_band(queries: Sequences, targets: Sequences, pairs: str, band: Any, free: Free) -> None:
    """Refuse pairs whose ends lie outside, as their lengths differ too much."""
    if band is None:
        return
    if not isinstance(band, Integral) or band < 0:
        raise InputError(f"band={band!r} is no number of letters")
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
                f"{kind} {long.names[longest]} has {excess} letters more than its partner "
                f"{short.names[partner]}, which band={band} cannot bridge"
            )


def _check_range(queries: Sequences, targets: Sequences, scoring: Scoring) -> None:
    """Refuse what int32 might not hold."""
    most = int(queries.length.max() + targets.length.max())
    largest = max(int(scoring.matrix.abs().max()), scoring.gaps.open)
    if most * largest >= 2**30:
        raise InputError(
            f"scores of up to {largest} over {most} letters do not fit in int32: scale them down"
        )


def _shares(
    queries: Sequences, targets: Sequences, pairs: str, count: int
) -> list[tuple[int, int]]:
    """First and last pairs of up to so many contiguous shares of about as many cells each."""
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
    """Pairs ``first : last`` on a device; letters that queries and targets share go there once."""
    n = torch.arange(first, last, device=device)
    query, target = n // len(targets.names), n % len(targets.names)
    if pairs == "zip":
        is_shared = targets is queries
        queries = queries.part(first, last)
        targets = queries if is_shared else targets.part(first, last)
        query = target = n - first
    padding = torch.zeros(PAD, dtype=torch.uint8, device=device)
    letters, offset = [padding, queries.letters.to(device)], PAD
    if targets is not queries:
        letters.append(targets.letters.to(device))
        offset += len(queries.letters)
    return Pairs(
        torch.cat([*letters, padding]),
        queries.start.to(device)[query] + PAD,
        queries.length.to(device)[query],
        targets.start.to(device)[target] + offset,
        targets.length.to(device)[target],
    )


def _gathered(parts: list[Aligned]) -> Aligned:
    """Alignments of all shares, where those of the first are."""
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
