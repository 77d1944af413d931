"""Blocks of OpenFold3, accelerated, compared with the package's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.models.openfold3.adapter import OpenFold3BlockForward
from mlff_triton.errors import UnsupportedModelError
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

pairformer = pytest.importorskip(
    "openfold3.core.model.latent.pairformer", reason="openfold3 is not installed"
)

pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")

TOKENS, PAIRS = 48, 32
SIZES = {
    "c_z": PAIRS,
    "c_hidden_mul": PAIRS,
    "c_hidden_pair_att": 8,
    "no_heads_pair": 2,
    "transition_type": "swiglu",
    "transition_n": 4,
    "pair_dropout": 0.25,
    "fuse_projection_weights": False,
    "inf": 1e9,
}
OF_TOKENS = {"c_s": TOKENS, "c_hidden_pair_bias": 8, "no_heads_pair_bias": 4}


def block_of(**options: Any) -> nn.Module:
    return pairformer.PairFormerBlock(**OF_TOKENS, **SIZES | options)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "block": block_of,
    "joint maps": partial(block_of, fuse_projection_weights=True, c_hidden_mul=2 * PAIRS),
    "pairs": lambda: pairformer.PairBlock(**SIZES | {"c_hidden_mul": PAIRS // 2}),
}
blocks = pytest.mark.parametrize("name", BLOCKS)


def make(name: str, device: str = "cpu") -> nn.Module:
    return randomize(BLOCKS[name]()).to(device)


def arguments(
    block: nn.Module, batch: int, n: int, device: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the arguments of a block, and the masks of its results."""
    torch.manual_seed(n)
    s, z, mask, pair_mask = inputs(batch, n, TOKENS, PAIRS, device)
    if type(block).__name__ == "PairBlock":
        return (z, pair_mask), (pair_mask,)
    return (s, z, mask, pair_mask), (mask, pair_mask)


@blocks
@pytest.mark.parametrize("size", [(1, 1), (2, 17), (1, 100)], ids=str)
def test_results_are_those_of_openfold3(name, size):
    block = make(name)
    check_in_pytorch(block, block, *arguments(block, *size, "cpu"))


@blocks
def test_kernels_are_as_exact_as_openfold3(name, device):
    block = make(name, device)
    given, masks = arguments(block, 2, 5, device)
    exact, own = exact_results(block, block, given), results(block, given)
    with bio.accelerated(block, backend="triton"):
        found = results(block, given)
        assert [part.state for part in bio.report(block)] == ["fast"]
    assert_close(found, own, exact, masks)
    assert_as_exact(found, own, exact, masks)


@pytest.mark.gpu
@blocks
@pytest.mark.parametrize("size", BLOCK_SIZES, ids=str)
def test_results_on_a_gpu_are_as_exact_as_those_of_openfold3(name, size):
    block = make(name, "cuda")
    check_on_a_gpu(block, block, *arguments(block, *size, "cuda"))


@pytest.mark.gpu
@blocks
def test_results_under_autocast_are_as_exact_as_those_of_openfold3(name):
    block = make(name, "cuda")
    given, masks = arguments(block, 2, 100, "cuda")
    exact = exact_results(block, block, given)
    with torch.autocast("cuda", torch.bfloat16):
        own = results(block, given)
        with bio.accelerated(block):
            found = results(block, given)
            assert [part.state for part in bio.report(block)] == ["fast"]
    assert_as_exact(found, own, exact, masks, torch.bfloat16)


@pytest.mark.usefixtures("bfloat16_arithmetic")
@blocks
@pytest.mark.parametrize("size", [(2, 5), pytest.param((2, 100), marks=pytest.mark.gpu)], ids=str)
def test_kernels_are_as_exact_in_half_precision(name, size, device):
    block = make(name, device)
    given, masks = arguments(block, *size, device)
    assert_as_exact_in_half(block, block, given, masks, device)


@blocks
def test_pairs_are_overwritten_only_where_that_is_safe(name):
    block = make(name)
    given, _ = arguments(block, 2, 5, "cpu")
    before = [x.clone() for x in given]
    with bio.accelerated(block, backend="torch"):
        own = results(block, given)
        assert all(map(torch.equal, given, before))
        found = results(partial(block, inplace_safe=True), given)
    assert all(map(torch.equal, found, own))
    z = given[-3] if len(given) == 4 else given[0]
    assert found[-1].data_ptr() == z.data_ptr()
    assert torch.equal(found[-1], z)


def test_chunks_and_axes_before_the_last_do_not_matter():
    block = make("block")
    given, masks = arguments(block, 2, 7, "cpu")
    more = tuple(x[:, None].expand(-1, 3, *x.shape[1:]) for x in given)
    own = results(block, given)
    with bio.accelerated(block, backend="torch"):
        for x, y, mask in zip(results(block, more), own, masks, strict=True):
            assert x.shape == (2, 3, *y.shape[1:])
            for part in x.unbind(1):
                kept = mask.bool()
                torch.testing.assert_close(part[kept], y[kept], rtol=0, atol=1e-5)
        x = results(partial(block, chunk_size=4, _mask_trans=False), given)
        assert all(map(torch.equal, x, results(block, given)))


def test_blocks_within_blocks_are_replaced_once():
    block = make("block")
    bio.accelerate(block, backend="torch")
    assert [part.path for part in bio.report(block)] == ["."]
    bio.restore(block)
    assert not any("forward" in vars(part) for part in block.modules())


def test_weights_may_have_any_stride():
    def read(block: nn.Module) -> Any:
        return OpenFold3BlockForward(block, bio.core.fast_forward.Options(backend="torch")).read()

    assert_strides_do_not_matter(read, make("block"))


def test_other_transitions_are_refused():
    block = pairformer.PairBlock(**SIZES | {"transition_type": "relu"})
    with pytest.raises(UnsupportedModelError):
        bio.accelerate(block, strict=True)
