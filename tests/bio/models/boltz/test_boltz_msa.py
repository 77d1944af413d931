"""Blocks of the MSA modules of Boltz, accelerated, compared with the package's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from tests.bio.models.structure.cases import (
    assert_as_exact,
    assert_close,
    assert_same_again,
    exact_results,
    inputs,
    randomize,
    results,
)

pytest.importorskip("boltz.model.layers.pairformer", reason="boltz is not installed")

pytestmark = pytest.mark.filterwarnings(
    "ignore:(User provided device_type of 'cuda'|CUDA is not available)"
)

CHANNELS, PAIRS = 24, 32
blocks = pytest.mark.parametrize("name", ["trunk", "trunkv2"])


def make(name: str, device: str = "cpu") -> nn.Module:
    module = pytest.importorskip(f"boltz.model.modules.{name}", reason="fairscale is missing")
    heads = {"pairwise_head_width": 8, "pairwise_num_heads": 2}
    return randomize(module.MSALayer(CHANNELS, PAIRS, 0.15, 0.25, **heads)).to(device)


def arguments(
    depth: int, batch: int, n: int, device: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the arguments of a block, and the masks of its results."""
    torch.manual_seed(n)
    _, z, mask, pair_mask = inputs(batch, n, 1, PAIRS, device)
    msa = torch.randn(batch, depth, n, CHANNELS).to(device)
    msa_mask = (torch.rand(batch, depth, n) < 0.8).to(device) * mask[:, None]
    kept = mask[:, None].expand(batch, depth, n)
    return (z, msa, pair_mask, msa_mask), (pair_mask, kept)


def compare(
    block: nn.Module, given: tuple[Any, ...], masks: tuple[Tensor, ...], **options: Any
) -> tuple[tuple[Tensor, ...], ...]:
    """Return results of the accelerated block, the original, and float64, which must be close."""
    exact, own = exact_results(block, block, given), results(block, given)
    expected = torch.rand(3)
    with bio.accelerated(block, **options):
        found = results(block, given)
        assert torch.equal(torch.rand(3), expected)
        assert [part.state for part in bio.report(block)] == ["fast"]
        assert_same_again(found, block, given, options.get("backend"))
    assert_close(found, own, exact, masks)
    return found, own, exact


@blocks
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 2, 17), (3, 1, 60)], ids=str)
def test_results_are_those_of_boltz(name, size):
    given, masks = arguments(*size, "cpu")
    compare(make(name), given, masks, backend="torch")


@blocks
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_alignments_may_be_empty(name, backend, device):
    given, masks = arguments(0, 1, 3, device)
    compare(make(name, device), given, masks, backend=backend)


@blocks
def test_kernels_are_as_exact_as_boltz(name, device):
    given, masks = arguments(3, 2, 5, device)
    found, own, exact = compare(make(name, device), given, masks, backend="triton")
    assert_as_exact(found, own, exact, masks)


@pytest.mark.gpu
@blocks
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 2, 17), (70, 1, 300)], ids=str)
def test_results_on_a_gpu_are_as_exact_as_those_of_boltz(name, size):
    given, masks = arguments(*size, "cuda")
    found, own, exact = compare(make(name, "cuda"), given, masks)
    assert_as_exact(found, own, exact, masks)


@pytest.mark.gpu
@blocks
def test_results_under_autocast_are_as_exact_as_those_of_boltz(name):
    block = make(name, "cuda")
    given, masks = arguments(20, 2, 100, "cuda")
    exact = exact_results(block, block, given)
    with torch.autocast("cuda", torch.bfloat16):
        own = results(block, given)
        with bio.accelerated(block):
            found = results(block, given)
            assert [part.state for part in bio.report(block)] == ["fast"]
    assert_as_exact(found, own, exact, masks, torch.bfloat16)


@blocks
def test_chunks_do_not_matter(name):
    block = make(name)
    given, _ = arguments(3, 1, 7, "cpu")
    with bio.accelerated(block, backend="torch"):
        own = results(block, given)
        assert all(map(torch.equal, results(block, (*given, True, 64, 32, 4, 128)), own))
