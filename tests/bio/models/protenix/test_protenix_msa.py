"""Blocks of the MSA module of Protenix, accelerated, compared with the package's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from tests.bio.models.structure.cases import (
    assert_as_exact,
    assert_as_exact_in_half,
    assert_close,
    assert_same_again,
    exact_results,
    randomize,
    results,
)
from tests.kernels.pairs.conftest import bfloat16_arithmetic

__all__ = ["bfloat16_arithmetic"]

os.environ.setdefault("LAYERNORM_TYPE", "torch")  # else the package compiles a CUDA extension
pairformer = pytest.importorskip(
    "protenix.model.modules.pairformer", reason="protenix is not installed"
)

CHANNELS, PAIRS = 24, 128
blocks = pytest.mark.parametrize("last", [False, True])


def make(last: bool, device: str = "cpu") -> nn.Module:
    sizes = {"c_m": CHANNELS, "c_z": PAIRS, "c_hidden": 16, "is_last_block": last}
    return randomize(pairformer.MSABlock(**sizes)).to(device)


def arguments(depth: int, n: int, device: str, draw: int = 0) -> tuple[Tensor, ...]:
    """Return the arguments of a block, whose mask leaves out pairs, but no token."""
    torch.manual_seed(n + 1000 * draw)
    mask = (torch.rand(n, n) < 0.8).float()
    given = torch.randn(depth, n, CHANNELS), torch.randn(n, n, PAIRS), mask.fill_diagonal_(1)
    return tuple(x.to(device) for x in given)


def run(block: nn.Module, **options: Any) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that calls a block and returns the results that are not None.

    The original overwrites the alignment, so the block gets a copy.
    """

    def call(msa: Tensor, *given: Any) -> tuple[Tensor, ...]:
        return tuple(x for x in block(msa.clone(), *given, **options) if x is not None)

    return call


def compare(
    block: nn.Module, given: tuple[Any, ...], **options: Any
) -> tuple[tuple[Tensor, ...], ...]:
    """Return results of the accelerated block, the original, and float64, which must be close."""
    exact, own = exact_results(block, run(block), given), results(run(block), given)
    masks = tuple(torch.ones_like(x[..., 0]) for x in exact)
    with bio.accelerated(block, **options):
        found = results(run(block), given)
        assert [part.state for part in bio.report(block)] == ["fast"]
        assert_same_again(found, run(block), given, options.get("backend"))
    assert_close(found, own, exact, masks)
    return found, own, exact, masks


@blocks
@pytest.mark.parametrize("size", [(1, 1), (5, 17), (3, 60)], ids=str)
def test_results_are_those_of_protenix(last, size):
    compare(make(last), arguments(*size, "cpu"), backend="torch")


@blocks
def test_kernels_are_as_exact_as_protenix(last, device):
    assert_as_exact(*compare(make(last, device), arguments(3, 6, device), backend="triton"))


@pytest.mark.gpu
@blocks
@pytest.mark.parametrize("size", [(1, 1), (5, 17), (70, 300)], ids=str)
def test_results_on_a_gpu_are_as_exact_as_those_of_protenix(last, size):
    """One token has few rounding errors, so several ones are compared."""
    block, draws = make(last, "cuda"), 16 if size == (1, 1) else 1
    runs = [compare(block, arguments(*size, "cuda", draw)) for draw in range(draws)]
    assert_as_exact(
        *(tuple(map(torch.cat, zip(*part, strict=True))) for part in zip(*runs, strict=True))
    )


@pytest.mark.usefixtures("bfloat16_arithmetic")
@blocks
@pytest.mark.parametrize("size", [(3, 6), pytest.param((300, 100), marks=pytest.mark.gpu)], ids=str)
def test_kernels_are_as_exact_in_half_precision(last, size, device):
    block, given = make(last, device), arguments(*size, device)
    masks = tuple(torch.ones_like(x[..., 0]) for x in (given[1:2] if last else given[:2]))
    assert_as_exact_in_half(block, run(block), given, masks, device)


@pytest.mark.parametrize("backend", ["torch", "triton"])
@blocks
def test_alignments_may_be_empty(last, backend, device):
    compare(make(last, device), arguments(0, 3, device), backend=backend)


@blocks
def test_masks_without_pairs_of_a_token_need_the_original(last):
    block, (msa, z, mask) = make(last), arguments(3, 5, "cpu")
    mask[4] = mask[:, 4] = 0
    own = results(run(block), (msa, z, mask))
    bio.accelerate(block, backend="torch")
    with pytest.warns(bio.FallbackWarning, match="all pairs of a token are padding"):
        found = results(run(block), (msa, z, mask))
    assert all(map(torch.equal, found, own))


def test_inputs_are_not_overwritten():
    block, given = make(False), arguments(3, 5, "cpu")
    before = [x.clone() for x in given]
    with bio.accelerated(block, backend="torch"):
        for _ in range(2):
            results(partial(block, inplace_safe=True), given)
    assert all(map(torch.equal, given, before))
