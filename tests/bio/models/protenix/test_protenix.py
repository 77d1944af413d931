"""Blocks of Protenix, accelerated, compared with the package's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.core.fast_forward import FallbackWarning
from mlff_triton.bio.models.protenix.adapter import ProtenixBlockForward
from mlff_triton.testing.tf32 import tf32
from tests.bio.models.structure.cases import (
    BLOCK_SIZES,
    assert_as_exact,
    assert_as_exact_in_half,
    assert_close,
    check_in_pytorch,
    check_on_a_gpu,
    exact_results,
    inputs,
    randomize,
    results,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic
from tests.support.strides import assert_strides_do_not_matter

__all__ = ["bfloat16_arithmetic"]

os.environ.setdefault("LAYERNORM_TYPE", "torch")  # else the package compiles a CUDA extension
pairformer = pytest.importorskip(
    "protenix.model.modules.pairformer", reason="protenix is not installed"
)

TOKENS, PAIRS = 48, 32
SIZES = {"n_heads": 4, "c_z": PAIRS, "c_hidden_mul": PAIRS, "c_hidden_pair_att": 8}


def block_of(**options: Any) -> nn.Module:
    sizes = {"c_s": TOKENS, "no_heads_pair": 2} | SIZES | options
    return pairformer.PairformerBlock(**sizes)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "block": block_of,
    "version 2": partial(block_of, hidden_scale_up=True),
    "templates": partial(block_of, c_s=0, c_hidden_mul=2 * PAIRS),
    "fewer hidden channels": partial(block_of, c_hidden_mul=PAIRS // 2),
    "pairs": partial(block_of, c_s=0),
}
blocks = pytest.mark.parametrize("name", BLOCKS)


def make(name: str, device: str = "cpu") -> nn.Module:
    return randomize(BLOCKS[name]()).to(device)


def arguments(
    block: Any, batch: int, n: int, device: str
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Return the arguments of a block, and the masks of its results, which are whole.

    The mask of pairs leaves pairs of tokens out, but no token, as tokens have no mask.
    """
    torch.manual_seed(n)
    s, z, mask, pair_mask = inputs(batch, n, TOKENS, PAIRS, device)
    mask, whole = torch.ones_like(mask), torch.ones_like(pair_mask)
    pair_mask = (torch.rand(pair_mask.shape) < 0.8).to(pair_mask)
    pair_mask.diagonal(dim1=1, dim2=2).fill_(1)
    return (s if block.c_s else None, z, pair_mask), ((mask, whole) if block.c_s else (whole,))


def run(block: nn.Module, **options: Any) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that calls a block and returns the results that are not None."""

    def call(*given: Any) -> tuple[Tensor, ...]:
        return tuple(x for x in block(*given, **options) if x is not None)

    return call


@blocks
@pytest.mark.parametrize("size", [(1, 1), (2, 17), (1, 100)], ids=str)
def test_results_are_those_of_protenix(name, size):
    block = make(name)
    check_in_pytorch(block, run(block), *arguments(block, *size, "cpu"))


@blocks
def test_kernels_are_as_exact_as_protenix(name, device):
    block = make(name, device)
    given, masks = arguments(block, 2, 5, device)
    exact, own = exact_results(block, run(block), given), results(run(block), given)
    with bio.accelerated(block, backend="triton"):
        found = results(run(block), given)
        assert [part.state for part in bio.report(block)] == ["fast"]
    assert_close(found, own, exact, masks)
    assert_as_exact(found, own, exact, masks)


@pytest.mark.gpu
@blocks
@pytest.mark.parametrize("size", BLOCK_SIZES, ids=str)
def test_results_on_a_gpu_are_as_exact_as_those_of_protenix(name, size):
    block = make(name, "cuda")
    check_on_a_gpu(block, run(block), *arguments(block, *size, "cuda"))


@pytest.mark.gpu
@blocks
def test_results_with_tf32_are_as_exact_as_those_of_protenix(name):
    block = make(name, "cuda")
    given, masks = arguments(block, 1, 100, "cuda")
    exact = exact_results(block, run(block), given)
    with tf32(allowed=True):
        own = results(run(block), given)
        with bio.accelerated(block):
            found = results(run(block), given)
    assert_as_exact(found, own, exact, masks)


@pytest.mark.gpu
@blocks
def test_results_under_autocast_are_as_exact_as_those_of_protenix(name):
    block = make(name, "cuda")
    given, masks = arguments(block, 1, 100, "cuda")
    exact = exact_results(block, run(block), given)
    with torch.autocast("cuda", torch.bfloat16):
        own = results(run(block), given)
        with bio.accelerated(block):
            found = results(run(block), given)
            assert [part.state for part in bio.report(block)] == ["fast"]
    assert_as_exact(found, own, exact, masks, torch.bfloat16)


@pytest.mark.usefixtures("bfloat16_arithmetic")
@blocks
@pytest.mark.parametrize("size", [(2, 5), pytest.param((2, 100), marks=pytest.mark.gpu)], ids=str)
def test_kernels_are_as_exact_in_half_precision(name, size, device):
    block = make(name, device)
    given, masks = arguments(block, *size, device)
    assert_as_exact_in_half(block, run(block), given, masks, device)


@blocks
def test_pairs_are_overwritten_only_where_that_is_safe(name):
    block = make(name)
    given, _ = arguments(block, 1, 5, "cpu")
    before = [x if x is None else x.clone() for x in given]
    with bio.accelerated(block, backend="torch"):
        own = results(run(block), given)
        assert torch.equal(given[1], before[1])
        found = results(run(block, inplace_safe=True), given)
    assert all(map(torch.equal, found, own))
    assert found[-1].data_ptr() == given[1].data_ptr()
    assert given[0] is None or torch.equal(given[0], before[0])


@blocks
@pytest.mark.parametrize("axis", [1, 2])
def test_masks_without_pairs_of_a_token_need_the_original(name, axis):
    """The package attends to padding from padding, and to padding from all tokens."""
    block = make(name)
    (s, z, mask), _ = arguments(block, 2, 7, "cpu")
    bio.accelerate(block, backend="torch")
    results(run(block), (s, z, mask))
    mask.select(axis, 5)[1] = 0
    with pytest.warns(FallbackWarning, match="all pairs of a token are padding"):
        found = results(run(block), (s, z, mask))
    bio.restore(block)
    assert all(map(torch.equal, found, results(run(block), (s, z, mask))))


def test_samples_and_masks_are_optional():
    block = make("block")
    (s, z, _), masks = arguments(block, 1, 7, "cpu")
    given = s[0], z[0], None
    exact, own = exact_results(block, run(block), given), results(run(block), given)
    with bio.accelerated(block, backend="torch"):
        found = results(run(block, chunk_size=2), given)
    assert_close(found, own, exact, tuple(mask[0] for mask in masks))


def test_half_precision_is_kept():
    block = make("pairs").bfloat16()
    given, _ = arguments(block, 1, 5, "cpu")
    half = tuple(x if x is None else x.bfloat16() for x in given)
    with bio.accelerated(block, backend="torch"):
        found = results(run(block), half)
        assert [part.state for part in bio.report(block)] == ["fast"]
    for x, y in zip(found, results(run(block), half), strict=True):
        assert x.dtype == torch.bfloat16
        torch.testing.assert_close(x, y, rtol=0.05, atol=0.1)


def test_hidden_channels_that_are_no_power_of_two_need_the_original(device):
    block = randomize(block_of(c_hidden_mul=24)).to(device)
    given, _ = arguments(block, 1, 5, device)
    own = results(run(block), given)
    bio.accelerate(block, backend="triton")
    with pytest.warns(FallbackWarning, match="sums over outgoing edges have 24 channels"):
        found = results(run(block), given)
    assert all(map(torch.equal, found, own))


def test_weights_may_have_any_stride():
    def read(block: nn.Module) -> Any:
        return ProtenixBlockForward(block, bio.core.fast_forward.Options(backend="torch")).read()

    assert_strides_do_not_matter(read, make("block"))
