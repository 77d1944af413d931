"""Runs of operations to text and to numbers, all at once and where they are."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from mlff_triton.kernels.types.sequence_pairs import (
    LETTERS_OF_OPERATIONS,
    MATCH,
    MISMATCH,
    Runs,
    sums_before,
)

AT_A_TIME = 128  # strings that are taken from memory: they stay in the cache


def cigars(runs: Runs, letters: str = LETTERS_OF_OPERATIONS) -> list[str]:
    """CIGAR strings of all alignments; operations have these letters."""
    if not len(runs.length):
        return [""] * (len(runs.start) - 1)
    length = runs.length
    places = len(str(int(length.max())))
    size = torch.full_like(length, 2, dtype=torch.uint8)  # a digit and a letter
    for place in range(1, places):
        size += length >= 10**place
    end = sums_before(size)
    bounds = end[runs.start].tolist()
    room = places + 1  # for digits that the first number does not have
    text = torch.zeros(room + bounds[-1], dtype=torch.uint8, device=length.device)
    # Digits that a number does not have fall on the run before, whose own lower ones come later.
    for place in reversed(range(places)):
        digit = (length if place == 0 else length // 10**place) % 10
        text[room - 2 - place :].scatter_(0, end[1:], digit.byte().add_(ord("0")))
    codes = torch.tensor(list(letters.encode()), dtype=torch.uint8, device=length.device)
    text[room - 1 :].scatter_(0, end[1:], codes.index_select(0, runs.operation.int()))
    return _strings(text[room:], bounds)


def _strings(text: Tensor, bounds: list[int]) -> list[str]:
    """What lies between bounds of a text in ASCII."""
    if text.is_cuda:  # which writes such memory faster
        text = torch.empty(text.shape, dtype=text.dtype, pin_memory=True).copy_(text)
    memory, found = text.numpy().data, []
    for k in range(0, len(bounds) - 1, AT_A_TIME):
        places = bounds[k : k + AT_A_TIME + 1]
        first = places[0]
        part = str(memory[first : places[-1]], "ascii")
        found += [part[a - first : b - first] for a, b in pairwise(places)]
    return found


def without_mismatches(runs: Runs) -> Runs:
    """Runs in which `MATCH` is any letter against any other."""
    operation = runs.operation.masked_fill(runs.operation == MISMATCH, MATCH)
    begins = operation.new_ones(len(operation) + 1, dtype=torch.bool)
    begins[1:-1] = operation[1:] != operation[:-1]
    begins[runs.start] = True
    (place,) = begins[:-1].nonzero(as_tuple=True)
    letters = sums_before(runs.length)[torch.cat([place, place.new_tensor([len(operation)])])]
    return Runs(sums_before(begins)[runs.start], operation[place], letters.diff().int())


def columns(runs: Runs, operations: tuple[int, ...] = (0, 1, 2, 3)) -> Tensor:
    """How many columns int64 [n] of alignments have these operations."""
    chosen = torch.zeros_like(runs.operation, dtype=torch.bool)
    for operation in operations:
        chosen |= runs.operation == operation
    return sums_before(runs.length * chosen)[runs.start].diff()
