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
    Biopython's ``PairwiseAligner`` takes the same two numbers with a minus sign. BLAST's 11 and 1
    are 12 and 1 here, because it adds both for the first position of a gap. Case does not matter.

    Parameters
    ----------
    queries, targets : path, iterable of sequences, or (tensor, lengths)
        Path of a FASTA or FASTQ file, gzipped or not; an iterable of str, bytes, or Biopython's Seq
        or SeqRecord; a dict from names to sequences; or codes, an integer tensor [n, L], with
        lengths [n]. A code is a row of the matrix, or an index into ACGTN without one.
    mode : {"global", "local", "semiglobal"} or collection of str
        "global" aligns both sequences from end to end (parasail's ``nw``), "local" finds the
        best-scoring parts (``sw``), and "semiglobal" frees all ends of gap penalties (``sg``). To
        free some, name them: "query_begin", "query_end", "target_begin", "target_end"; the last two
        find the whole query within its target. As in parasail, a residue or base of each sequence
        precedes the free ends, so sequences without anything in common score less than zero.
    matrix : str or [A, A] array, optional
        Symmetric substitution matrix of integers: a name known to Biopython, such as "BLOSUM62" or
        "NUC.4.4"; one of Biopython's arrays; a DataFrame with residues or bases as columns; or an
        array for ACGT, ACGTN, the 20 amino acids ARNDCQEGHILKMFPSTWYV, or these and BZX*.
    match, mismatch : int
        Scores of equal and different bases, used without a matrix. N matches nothing, not even N.
    gap_open, gap_extend : int, optional
        Gap penalties, with ``0 <= gap_extend <= gap_open``. Equal penalties make gaps linear. By
        default, 11 and 1 with a matrix that has all amino acids, and otherwise 5 and 2.
    pairs : {"zip", "all"}
        "zip" pairs the k-th query with the k-th target. "all" pairs every query with every target,
        such that pair ``k * len(targets) + l`` is query k with target l.
    traceback : bool
        If True, compute alignments as well as scores. Ties are broken in the fixed order of
        `mlff_triton.kernels.alignment.reference.alignment.alignment`.
    band : int, optional
        Largest difference between positions in query and target that an alignment may have.
    unknown : str, optional
        Residue or base, such as "X" or "N", that gives its scores to symbols missing from the
        matrix. These symbols stay distinct: different ones are a mismatch. By default, they raise
        an error. Without a matrix of proteins, U is read as T, and proteins are always refused.
    device : str or torch.device
        "auto", "cpu", "cuda:1"... "all" divides the pairs among all GPUs; results are on the first.
    backend : {"auto", "triton", "parasail", "torch"}
        "triton" runs fused kernels on a GPU. "parasail" computes scores on the CPU, and leaves
        tracebacks, bands, three free ends and empty sequences to "torch", the reference on any
        device. All return the same results. "auto" takes the first one that is available.

    Returns
    -------
    Alignments
        Scores of all pairs; with a traceback, also CIGAR strings, coordinates, identities and SAM.

    Raises
    ------
    InputError
        If a sequence cannot be read or has a symbol missing from the matrix, there are no
        sequences, "zip" gets unequal numbers of them, scores may overflow int32, a traceback
        without a kernel needs a table of more than 4 GiB, or an option is invalid.
    BackendError
        If the backend or device is unavailable.

    References
    ----------
    S. Needleman and C. Wunsch, https://doi.org/10.1016/0022-2836(70)90057-4; T. Smith and M.
    Waterman, https://doi.org/10.1016/0022-2836(81)90087-5; O. Gotoh,
    https://doi.org/10.1016/0022-2836(82)90398-9; parasail, https://doi.org/10.1186/s12859-016-0930-z.

    Examples
    --------
    >>> found = align(["ACGTTA"], ["ACTTA"], traceback=True, device="cpu")
    >>> found.score.tolist(), found.cigar
    ([5], ['2=1I3='])
    """
    free = _free(mode)
    _check_pairs(pairs)
    scoring = Scoring.of(matrix, match, mismatch, gap_open, gap_extend)
    devices = find_devices(device, backend)
    backend = choose_backend(backend, devices[0])
    encoder = devices[0] if devices[0].type == "cuda" else None
    alphabet = Alphabet(scoring.letters, unknown, device=encoder)
    sequences = _read(queries, targets, pairs, alphabet)
    task = _task(*sequences, pairs, scoring, free, band, traceback)
    return _Work(*sequences, pairs, alphabet, backend, task).on(devices)


@dataclass(frozen=True)
class _Work:
    """The alignments of all pairs, which several devices may share."""

    queries: Sequences
    targets: Sequences
    pairs: str
    alphabet: Alphabet
    backend: str
    task: Task

    def on(self, devices: list[torch.device]) -> Alignments:
        """Divide all pairs among devices and align them; results are on the first."""
        shares = _shares(self.queries, self.targets, self.pairs, len(devices))
        if len(shares) == 1:
            aligned = self.of(shares[0], devices[0])
        else:
            with ThreadPoolExecutor(len(shares)) as pool:  # one thread waits for each device
                aligned = _gathered(list(pool.map(self.of, shares, devices)))
        return Alignments(aligned, self.queries, self.targets, self.pairs, self.alphabet)

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


def _check_pairs(pairs: str) -> None:
    if pairs not in ("zip", "all"):
        raise InputError(f"pairs={pairs!r} is unknown: use 'zip' or 'all'")


def _read(
    queries: Any, targets: Any, pairs: str, alphabet: Alphabet
) -> tuple[Sequences, Sequences]:
    """Read queries and targets, once if they are the same object; check that they fit together."""
    read_queries = alphabet.read(queries, "query")
    read_targets = read_queries if targets is queries else alphabet.read(targets, "target")
    if pairs == "zip":
        _check_partners(read_queries, read_targets)
    return read_queries, read_targets


def _check_partners(queries: Sequences, targets: Sequences) -> None:
    """Check that every query has a target."""
    n, others = len(queries.names), len(targets.names)
    if n != others:
        kind, rest = ("query", queries) if n > others else ("target", targets)
        name = rest.names[min(n, others)]
        raise InputError(
            f"{n} queries and {others} targets cannot be paired one to one: {kind} "
            f"{shortened(name)} has no partner. Use pairs='all' to align every query with every "
            "target"
        )


def _task(
    queries: Sequences,
    targets: Sequences,
    pairs: str,
    scoring: Scoring,
    free: Free,
    band: int | None,
    traceback: bool,
) -> Task:
    """Return what to compute; raise if a pair does not fit into the band or scores into int32."""
    band = _checked_band(queries, targets, pairs, band, free)
    _check_range(queries, targets, scoring)
    return Task(scoring.matrix, scoring.gaps, free, band, traceback)


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
    parts = [moved(part, parts[0].score.device) for part in parts]
    score = torch.cat([part.score for part in parts])
    runs = [part.runs for part in parts if part.runs]
    if not runs:
        return Aligned(score, None, None, None)
    begin = torch.cat([part.begin for part in parts if part.begin is not None])
    end = torch.cat([part.end for part in parts if part.end is not None])
    return Aligned(score, begin, end, join_runs(runs))
