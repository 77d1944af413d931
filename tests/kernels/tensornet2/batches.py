"""Atoms of several systems in another order than the user's."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Systems of each row, row of each of the user's atoms, and first atom of each system."""

    systems: Tensor
    rank: Tensor
    system_ptr: Tensor


def random_batch(*sizes: int) -> Batch:
    """Return systems of these sizes, whose atoms are shuffled within each system."""
    lengths = torch.tensor(sizes)
    system_ptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    rank = torch.cat(
        [begin + torch.randperm(n) for begin, n in zip(system_ptr.tolist(), sizes, strict=False)]
    )
    systems = torch.arange(len(sizes)).repeat_interleave(lengths)
    return Batch(systems.int(), rank.int(), system_ptr.int())
