"""The update of a block as a function of tensors, and the CUDA graphs that blocks share.

The weights are among the tensors, so one graph serves all blocks of a stack: a call copies weights
and inputs into it and replays it. For few tokens, the dozens of launches of a block take longer
than its kernels.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from mlff_triton.bio.core.graph_cache import GraphCache, Inputs, Outputs, copy_all
from mlff_triton.bio.core.operators import pair_operators
from mlff_triton.bio.models.structure.packed import unpacked
from mlff_triton.bio.models.structure.updates import (
    BlockWeights,
    MSAWeights,
    TokenWeights,
    update_msa,
    update_pairs,
    update_tokens,
)

_MOST_ELEMENTS = 3 * 2**25  # of pairs or tokens; kernels of more take longer than their launches
_FEWEST_TO_BEGIN = 2**23  # elements of pairs whose copy takes longer than launches
_SHAPES = 8  # per device

_GRAPHS: WeakValueDictionary[torch.device, GraphCache] = WeakValueDictionary()


class BlockUpdate(NamedTuple):
    """Everything about the update of a block except its tensors.

    Attributes
    ----------
    backend : {"triton", "torch"}
        Operators.
    token_axes : int
        Number of axes of tokens: 1, or 2 for an alignment.
    token_rows, pair_rows : torch.dtype
        Dtypes in which tokens and pairs are updated.
    tokens, pairs : torch.dtype
        Dtypes of the results.
    places : Any
        Places of the `BlockWeights`, see `Packed`.
    tf32 : bool
        True if maps of tokens in float32 may have the errors of TF32, as PyTorch's setting is.
    keeps_pairs : bool
        True if the given pairs must not be overwritten.
    begun : bool
        True if `begin_block` has computed the first update of the pairs.
    """

    backend: str | None
    token_axes: int
    token_rows: torch.dtype
    pair_rows: torch.dtype
    tokens: torch.dtype
    pairs: torch.dtype
    places: Any
    tf32: bool
    keeps_pairs: bool
    begun: bool


def begin_block(weights: BlockWeights, inputs: Inputs, how: BlockUpdate, own: Inputs) -> None:
    """Copy the inputs of a graph, except for pairs, which the first update writes.

    With 512 tokens, a copy of pairs in float32 takes 4 % of the time of a block.
    """
    _, z, _, pair_mask = inputs
    assert z is not None
    assert own[1] is not None
    copy_all(_without_pairs(inputs), _without_pairs(own))
    given, out = (_rows(x, how.pair_rows, 3) for x in (z, own[1]))
    multiply = pair_operators(how.backend).triangle_multiplication_
    multiply(given, weights.pairs.outgoing, _flat(pair_mask, 2, given.dtype), out=out)


def can_begin(weights: BlockWeights, z: Tensor, rows: torch.dtype) -> bool:
    """Return True if the first update of pairs should write those of a graph."""
    is_first = not isinstance(weights.tokens, MSAWeights)
    return is_first and z.numel() > _FEWEST_TO_BEGIN and z.dtype == rows and z.is_contiguous()


def update_block(weights: BlockWeights, inputs: Inputs, how: BlockUpdate) -> Outputs:
    """Return updated tokens, if there are weights for them, and pairs.

    The inputs are tokens, pairs and their masks, for which see
    `mlff_triton.bio.models.structure.block.Inputs`. Tokens may be overwritten.
    """
    given_s, given_z, mask, pair_mask = inputs
    assert given_z is not None
    operators, axes, (pairs, tokens) = pair_operators(how.backend), how.token_axes, weights
    z = _rows(given_z, how.pair_rows, 3)
    is_given = how.keeps_pairs and z.data_ptr() == given_z.data_ptr()
    updated = torch.empty_like(z) if is_given else None
    pair_mask = _flat(pair_mask, 2, z.dtype)
    if tokens is None:
        z = update_pairs(operators, pairs, z, pair_mask, updated, begun=how.begun)
        return (z.view(given_z.shape).to(how.pairs),)
    assert given_s is not None
    s = _rows(given_s, how.token_rows, axes + 1)
    mask = _flat(mask, axes, s.dtype)
    if isinstance(tokens, MSAWeights):
        z = z if updated is None else updated.copy_(z)
        update_msa(operators, tokens, s, z, mask, pair_mask)
    z = update_pairs(operators, pairs, z, pair_mask, updated, begun=how.begun)
    if isinstance(tokens, TokenWeights):
        rows = z if z.dtype == tokens.bias.dtype else z.to(how.token_rows)
        s = update_tokens(operators, tokens, s, rows, mask)
    return s.view(given_s.shape).to(how.tokens), z.view(given_z.shape).to(how.pairs)


def _update_packed(inputs: Inputs, how: BlockUpdate) -> Outputs:
    """Update a block whose packed weights come after its inputs."""
    tensors = [x for x in inputs[4:] if x is not None]
    return update_block(unpacked(tensors, how.places), inputs[:4], how)


def graphs_on(device: torch.device) -> GraphCache:
    """Return the graphs of all blocks on a device, which exist as long as blocks keep them.

    Their inputs are those of `update_block`, and their constants the tensors of `Packed`.
    """
    found = _GRAPHS.get(device)
    if found is None:
        found = _GRAPHS[device] = GraphCache(_update_packed, _SHAPES, overwrites=True)
    return found


def is_small(s: Tensor | None, z: Tensor) -> bool:
    """Return True if a block is worth a graph."""
    return z.numel() <= _MOST_ELEMENTS and (s is None or s.numel() <= _MOST_ELEMENTS)


def _without_pairs(inputs: Inputs) -> Inputs:
    return [inputs[0], *inputs[2:]]


def _rows(x: Tensor, dtype: torch.dtype, axes: int) -> Tensor:
    """Return contiguous rows with one axis before the last ones."""
    return x.to(dtype).contiguous().view(_joined(x.shape, axes))


def _flat(mask: Tensor | None, axes: int, dtype: torch.dtype) -> Tensor | None:
    """Return a mask with one axis before the last ones."""
    return None if mask is None else mask.to(dtype).reshape(_joined(mask.shape, axes))


def _joined(shape: torch.Size, axes: int) -> tuple[int, ...]:
    """Return a shape with one axis before the last ones, also for tensors without elements."""
    first = len(shape) - axes
    return math.prod(shape[:first]), *shape[first:]
