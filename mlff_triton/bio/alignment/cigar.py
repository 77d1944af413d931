"""CIGAR strings and column counts of many alignments at once, on their own device."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from mlff_triton.kernels.alignment.types import (
    LETTERS_OF_OPERATIONS,
    MATCH,
    MISMATCH,
    Runs,
    sums_before,
)

STRINGS_PER_COPY = 128  # few enough to stay in the cache


def cigars(runs: Runs, letters: str = LETTERS_OF_OPERATIONS) -> list[str]:
    """Return the CIGAR strings of all alignments, with a letter for each operation."""
    if not len(runs.length):
        return [""] * (len(runs.start) - 1)
    length = runs.length
    max_digits = len(str(int(length.max())))
    size = torch.full_like(length, 2, dtype=torch.uint8)  # a digit and a letter
    for digits in range(1, max_digits):
        size += length >= 10**digits
    end = sums_before(size)
    bounds = end[runs.start].tolist()
    margin = max_digits + 1  # for leading digits that the first number lacks
    text = torch.zeros(margin + bounds[-1], dtype=torch.uint8, device=length.device)
    # Leading digits that a number does not have fall on the run before. Its own characters, which
    # are less significant digits or its letter, overwrite them later.
    for power in reversed(range(max_digits)):
        digit = (length if power == 0 else length // 10**power) % 10
        text[margin - 2 - power :].scatter_(0, end[1:], digit.byte().add_(ord("0")))
    codes = torch.tensor(list(letters.encode()), dtype=torch.uint8, device=length.device)
    text[margin - 1 :].scatter_(0, end[1:], codes.index_select(0, runs.operation.int()))
    return _strings(text[margin:], bounds)


def _strings(text: Tensor, bounds: list[int]) -> list[str]:
    """Split an ASCII text at the bounds."""
    if text.is_cuda:  # copies to pinned memory are faster
        text = torch.empty(text.shape, dtype=text.dtype, pin_memory=True).copy_(text)
    memory, found = text.numpy().data, []
    for k in range(0, len(bounds) - 1, STRINGS_PER_COPY):
        cuts = bounds[k : k + STRINGS_PER_COPY + 1]
        first = cuts[0]
        part = str(memory[first : cuts[-1]], "ascii")
        found += [part[a - first : b - first] for a, b in pairwise(cuts)]
    return found


def without_mismatches(runs: Runs) -> Runs:
    """Replace `MISMATCH` by `MATCH`, and merge adjacent runs."""
    operation = runs.operation.masked_fill(runs.operation == MISMATCH, MATCH)
    return merged(runs._replace(operation=operation))


def merged(runs: Runs) -> Runs:
    """Merge adjacent runs of one operation."""
    operation = runs.operation
    begins = operation.new_ones(len(operation) + 1, dtype=torch.bool)
    begins[1:-1] = operation[1:] != operation[:-1]
    begins[runs.start] = True
    (first,) = begins[:-1].nonzero(as_tuple=True)
    bounds = torch.cat([first, first.new_tensor([len(operation)])])
    length = sums_before(runs.length)[bounds].diff().int()
    return Runs(sums_before(begins)[runs.start], operation[first], length)


def columns(runs: Runs, operations: tuple[int, ...] = (0, 1, 2, 3)) -> Tensor:
    """Count the columns of each alignment that have one of these operations, int64 [n]."""
    chosen = torch.zeros_like(runs.operation, dtype=torch.bool)
    for operation in operations:
        chosen |= runs.operation == operation
    return sums_before(runs.length * chosen)[runs.start].diff()
