"""Blocks of the MSA module of OpenFold3, accelerated, compared with the package's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from mlff_triton.bio.core.fast_forward import FallbackWarning
from tests.bio.models.structure.cases import (
    assert_as_exact,
    assert_as_exact_in_half,
    assert_close,
    assert_same_again,
    exact_results,
    inputs,
    randomize,
    results,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic

__all__ = ["bfloat16_arithmetic"]

module = pytest.importorskip(
    "openfold3.core.model.latent.msa_module", reason="openfold3 is not installed"
)

pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")

CHANNELS, PAIRS = 24, 32
SIZES = {
    "c_m": CHANNELS,
    "c_z": PAIRS,
    "c_hidden_msa_att": 12,
    "c_hidden_opm": 16,
    "c_hidden_mul": 2 * PAIRS,
    "c_hidden_pair_att": 8,
    "no_heads_msa": 3,
    "no_heads_pair": 2,
    "transition_type": "swiglu",
    "transition_n": 4,
    "msa_dropout": 0.15,
    "pair_dropout": 0.25,
    "fuse_projection_weights": False,
    "inf": 1e9,
    "eps": 1e-10,
}
BLOCKS = {
    "pairs first": {"opm_first": True},
    "alignment first": {"opm_first": False},
    "last": {"opm_first": True, "last_block": True},
}
blocks = pytest.mark.parametrize("name", BLOCKS)


def make(name: str, device: str = "cpu") -> nn.Module:
    return randomize(module.MSAModuleBlock(**SIZES, **BLOCKS[name])).to(device)


def arguments(
    depth: int, batch: int, n: int, device: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the arguments of a block, and the masks of its results."""
    torch.manual_seed(n)
    _, z, mask, pair_mask = inputs(batch, n, 1, PAIRS, device)
    msa = torch.randn(batch, depth, n, CHANNELS).to(device)
    msa_mask = mask[:, None].repeat(1, depth, 1)
    msa_mask[:, 1:2, : n // 2] = 0
    return (msa, z, msa_mask, pair_mask), (msa_mask, pair_mask)


def compare(
    block: nn.Module, given: tuple[Any, ...], masks: tuple[Tensor, ...], **options: Any
) -> tuple[tuple[Tensor, ...], ...]:
    """Return results of the accelerated block, the original, and float64, which must be close."""
    exact, own = exact_results(block, block, given), results(block, given)
    with bio.accelerated(block, **options):
        found = results(block, given)
        assert [part.state for part in bio.report(block)] == ["fast"]
        assert_same_again(found, block, given, options.get("backend"))
    assert_close(found, own, exact, masks)
    return found, own, exact


@blocks
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 2, 17), (3, 1, 60)], ids=str)
def test_results_are_those_of_openfold3(name, size):
    given, masks = arguments(*size, "cpu")
    compare(make(name), given, masks, backend="torch")


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_alignments_may_be_empty(backend, device):
    """Other blocks of the package raise."""
    given, masks = arguments(0, 1, 3, device)
    compare(make("last", device), given, masks, backend=backend)


@blocks
def test_kernels_are_as_exact_as_openfold3(name, device):
    given, masks = arguments(3, 2, 5, device)
    found, own, exact = compare(make(name, device), given, masks, backend="triton")
    assert_as_exact(found, own, exact, masks)


@pytest.mark.gpu
@blocks
@pytest.mark.parametrize("size", [(1, 16, 1), (5, 2, 17), (70, 1, 300)], ids=str)
def test_results_on_a_gpu_are_as_exact_as_those_of_openfold3(name, size):
    given, masks = arguments(*size, "cuda")
    found, own, exact = compare(make(name, "cuda"), given, masks)
    assert_as_exact(found, own, exact, masks)


@pytest.mark.usefixtures("bfloat16_arithmetic")
@blocks
@pytest.mark.parametrize(
    "size", [(3, 2, 5), pytest.param((300, 2, 100), marks=pytest.mark.gpu)], ids=str
)
def test_kernels_are_as_exact_in_half_precision(name, size, device):
    block = make(name, device)
    given, masks = arguments(*size, device)
    assert_as_exact_in_half(block, block, given, masks, device)


def test_pairs_are_overwritten_only_where_that_is_safe():
    block = make("pairs first")
    given, _ = arguments(3, 1, 5, "cpu")
    before = [x.clone() for x in given]
    with bio.accelerated(block, backend="torch"):
        own = results(block, given)
        assert all(map(torch.equal, given, before))
        found = results(partial(block, inplace_safe=True), given)
    assert all(map(torch.equal, found, own))
    assert found[1].data_ptr() == given[1].data_ptr()


def test_offloaded_inputs_need_the_original():
    block = make("pairs first")
    given, _ = arguments(3, 1, 5, "cpu")
    own = results(block, given)
    forward = partial(block, _offload_inference=True)
    bio.accelerate(block, backend="torch")
    with pytest.warns(FallbackWarning, match="to the CPU and back"):
        found = results(forward, given)
    assert all(map(torch.equal, found, own))
