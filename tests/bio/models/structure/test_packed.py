"""Packed weights."""

from __future__ import annotations

import torch

from mlff_triton.bio.models.structure.packed import Packed, unpacked
from mlff_triton.bio.models.structure.updates import BlockWeights
from mlff_triton.kernels.pairs.types import TransitionWeights


def transition(seed: int) -> TransitionWeights:
    """Return weights of several dtypes, with sizes that need padding and a constant."""
    rng = torch.Generator().manual_seed(seed)
    norm = torch.randn(5, generator=rng), torch.randn(5, generator=rng), 1e-5
    maps = (torch.randn(shape, generator=rng).bfloat16() for shape in ((7, 5), (7, 5), (5, 7)))
    return TransitionWeights(norm, *maps)


def test_weights_are_views_of_one_tensor_per_dtype():
    weights = transition(0)
    packed = Packed.of(BlockWeights(weights, None))
    assert [x.dtype for x in packed.tensors] == [torch.float32, torch.bfloat16]
    pairs, tokens = packed.weights
    assert tokens is None
    assert isinstance(pairs, TransitionWeights)
    assert pairs.norm[2] == 1e-5
    assert torch.equal(pairs.norm[1], weights.norm[1])
    assert all(map(torch.equal, pairs[1:], weights[1:]))
    owners = {x.untyped_storage().data_ptr() for x in packed.tensors}
    for x in (*pairs.norm[:2], *pairs[1:]):
        assert x.untyped_storage().data_ptr() in owners
        assert x.is_contiguous()
        assert x.data_ptr() % 16 == 0


def test_places_are_those_of_all_weights_of_the_same_shapes():
    first, second = Packed.of(transition(0)), Packed.of(transition(1))
    assert first.places == second.places
    assert hash(first.places) == hash(second.places)
    found = unpacked(second.tensors, first.places)
    assert torch.equal(found.down, transition(1).down)
    other = transition(0)
    eps = other._replace(norm=(*other.norm[:2], 1e-6))
    turned = other._replace(gate=other.gate.T)
    assert len({Packed.of(each).places for each in (other, eps, turned)}) == 3
