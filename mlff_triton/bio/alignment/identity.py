"""Matches of alignments by the given residues or bases, regardless of their codes.

Several symbols may share a code: unknown symbols have the code of the symbol that replaces them. N
of an alphabet of bases stands for any base.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mlff_triton.bio.alignment.cigar import merged
from mlff_triton.kernels.alignment.types import (
    DELETION,
    INSERTION,
    MATCH,
    MISMATCH,
    Aligned,
    Pairs,
    Runs,
    sums_before,
)

COLUMNS = 2**24  # that are compared at a time, to limit the memory


def matched_by_symbols(aligned: Aligned, pairs: Pairs, symbols: Tensor) -> Aligned:
    """Turn matches of different symbols into mismatches.

    Parameters
    ----------
    aligned : Aligned
        Alignments with a traceback, whose matches have equal codes.
    pairs : Pairs
        Sequences that were aligned.
    symbols : uint8 [S]
        Symbol of each code in ``pairs.letters``; 0 for those that are identical to none.

    Returns
    -------
    Aligned
        The same alignments.
    """
    runs, begin = aligned.runs, aligned.begin
    assert runs is not None
    assert begin is not None
    columns = torch.cat([*_different(runs, begin, pairs, symbols)])
    return aligned._replace(runs=_with_mismatches(runs, columns)) if len(columns) else aligned


def _different(runs: Runs, begin: Tensor, pairs: Pairs, symbols: Tensor) -> Iterator[Tensor]:
    """Yield the columns, counted over all alignments, of matches of different symbols."""
    first_run, n_runs = runs.start[:-1], runs.start.diff()

    def position(gap: int, start: Tensor, before: Tensor) -> Tensor:
        """Return the index of each run's first symbol; gaps of the given kind have no symbols."""
        done = sums_before(runs.length * (runs.operation != gap))
        return done[:-1] + (start + before - done[first_run]).repeat_interleave(n_runs)

    yield first_run.new_empty(0)
    if not len(runs.length):
        return
    query = position(DELETION, pairs.query_start, begin[:, 0])
    target = position(INSERTION, pairs.target_start, begin[:, 1])
    column = sums_before(runs.length)
    (matches,) = (runs.operation == MATCH).nonzero(as_tuple=True)
    share = sums_before(runs.length[matches])[:-1] // COLUMNS
    for part in matches.split(share.unique_consecutive(return_counts=True)[1].tolist()):
        length = runs.length[part].long()
        offset = torch.arange(int(length.sum()), device=length.device)
        offset -= sums_before(length)[:-1].repeat_interleave(length)
        ours, theirs = (
            symbols[x[part].repeat_interleave(length) + offset] for x in (query, target)
        )
        wrong = (ours != theirs) | (ours == 0)
        yield (column[part].repeat_interleave(length) + offset)[wrong]


def _with_mismatches(runs: Runs, columns: Tensor) -> Runs:
    """Make some columns mismatches."""
    first = sums_before(runs.length)
    cuts = torch.cat([first, columns, columns + 1]).unique()
    bounds, cuts = cuts, cuts[:-1]  # the last is the end of all
    operation = runs.operation[torch.searchsorted(first, cuts, right=True) - 1]
    operation[torch.searchsorted(cuts, columns)] = MISMATCH
    start = torch.searchsorted(cuts, first[runs.start])
    return merged(Runs(start, operation, bounds.diff().int()))
