"""Weights of a module side by side in memory, one tensor per dtype.

A CUDA graph that reads copies of such tensors serves all modules whose weights have the same
shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.core.weights import with_parts
from mlff_triton.bio.models.structure.autocast import without_autocast

_ALIGNMENT = 16  # elements, so that kernels may load 16 bytes at once


class Place(NamedTuple):
    """Position of a tensor among those of its dtype."""

    dtype: torch.dtype
    start: int
    shape: torch.Size


class Packed(NamedTuple):
    """Weights in few tensors.

    Attributes
    ----------
    tensors : list of Tensor
        All elements, one tensor per dtype.
    places : Any
        The weights, with a `Place` instead of each tensor; hashable.
    weights : Any
        The weights, as views of the tensors.
    """

    tensors: list[Tensor]
    places: Any
    weights: Any

    @classmethod
    def of(cls, weights: Any) -> Packed:
        """Pack the tensors, at least one, in nested tuples."""
        parts: dict[torch.dtype, list[Tensor]] = {}
        places = _place(weights, parts)
        tensors = [_joined(each) for each in parts.values()]
        return cls(tensors, places, unpacked(tensors, places))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Return parts of one dtype in a tensor of theirs, which autocast would choose anew."""
    with without_autocast(parts[0].device):
        return torch.cat(list(parts))


def _place(value: Any, parts: dict[torch.dtype, list[Tensor]]) -> Any:
    if isinstance(value, Tensor):
        own = parts.setdefault(value.dtype, [])
        start, size = sum(map(len, own)), value.numel()
        own.append(value.flatten())
        own.append(value.new_zeros(-size % _ALIGNMENT))
        return Place(value.dtype, start, value.shape)
    if isinstance(value, tuple):
        return with_parts(value, [_place(part, parts) for part in value])
    return value


def unpacked(tensors: Sequence[Tensor], places: Any) -> Any:
    """Return weights as views of tensors that are those of `Packed`, or copies of them."""
    found = {tensor.dtype: tensor for tensor in tensors}

    def find(value: Any) -> Any:
        if isinstance(value, Place):
            stop = value.start + math.prod(value.shape)
            return found[value.dtype][value.start : stop].view(value.shape)
        return with_parts(value, map(find, value)) if isinstance(value, tuple) else value

    return find(places)
