"""Random weights and inputs of pair stacks, and comparisons with float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlff_triton import bio
from tests.kernels.pairs.cases import assert_no_worse

CLOSE = 1e-5
"""Largest difference between outputs in float32, relative to the largest output.

A rounding error grows with the values that it is made in, so that an absolute bound would be one on
the size of random inputs.
"""

BLOCK_SIZES = [(16, 1), (2, 17), (1, 100), (1, 511)]
"""Numbers of samples and tokens. One token has few rounding errors, so 16 samples are compared."""


def randomize(module: nn.Module) -> nn.Module:
    """Fill all parameters with random numbers, as output maps and gates start as zeros."""
    generator = torch.Generator().manual_seed(3)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        if p.dim() > 1:
            p.data *= p.shape[-1] ** -0.5
    for part in module.modules():
        if type(part).__name__.endswith("LayerNorm") and getattr(part, "weight", None) is not None:
            part.weight.data = 1 + part.weight.data / 4  # type: ignore[union-attr, operator]
    return module.eval()


def token_mask(batch: int, n: int) -> Tensor:
    """Return a mask [B, N] with padding at the end of the last of several samples."""
    mask = torch.ones(batch, n)
    if batch > 1:
        mask[-1, n - n // 4 :] = 0
    return mask


def inputs(
    batch: int, n: int, tokens: int, pairs: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return tokens, pairs, their mask, and the mask of pairs."""
    mask = token_mask(batch, n)
    given = (
        torch.randn(batch, n, tokens),
        torch.randn(batch, n, n, pairs),
        mask,
        mask[:, :, None] * mask[:, None],
    )
    s, z, mask, pair_mask = (x.to(device) for x in given)
    return s, z, mask, pair_mask


@contextmanager
def in_float64(*modules: nn.Module) -> Iterator[None]:
    """Compute in float64, also where upstream converts to float32 itself."""
    convert = Tensor.to

    def convert_widely(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        wide = [torch.float64 if arg is torch.float32 else arg for arg in args]
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return convert(x, *wide, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "float", Tensor.double)
        patch.setattr(Tensor, "to", convert_widely)
        for module in modules:
            module.double()
        yield
    for module in modules:
        module.to(torch.float32)


@torch.inference_mode()
def results(run: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of a block as a tuple."""
    torch.manual_seed(5)
    found = run(*given)
    return found if isinstance(found, tuple) else (found,)


def assert_same_again(
    found: tuple[Tensor, ...], run: Callable[..., Any], given: tuple[Any, ...], backend: str | None
) -> None:
    """Check that further calls give the same bits; three of them on a GPU, which end with graphs.

    Under the interpreter, kernels are not called again, as they take long.
    """
    calls = 3 if torch.cuda.is_available() else int(backend != "triton")
    for _ in range(calls):
        assert all(map(torch.equal, found, results(run, given)))


def exact_results(
    module: nn.Module, run: Callable[..., Any], given: tuple[Any, ...]
) -> tuple[Tensor, ...]:
    """Return the outputs of a block in float64."""
    with in_float64(module):
        wide = [x.double() if isinstance(x, Tensor) else x for x in given]
        return tuple(x.cpu() for x in results(run, tuple(wide)))


def assert_close(
    found: tuple[Tensor, ...],
    own: tuple[Tensor, ...],
    exact: tuple[Tensor, ...],
    masks: tuple[Tensor, ...],
) -> None:
    """Check that outputs in float32 are close to upstream's, and to those in float64."""
    for x, y, truth, mask in zip(found, own, exact, masks, strict=True):
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        kept = mask.cpu().bool()
        rounded = truth[kept].float()
        if not rounded.numel():
            continue
        atol = CLOSE * float(rounded.abs().max())
        torch.testing.assert_close(x.cpu()[kept], y.cpu()[kept], rtol=0, atol=atol)
        torch.testing.assert_close(x.cpu()[kept], rounded, rtol=0, atol=atol)


def check_in_pytorch(
    block: nn.Module,
    run: Callable[..., Any],
    given: tuple[Any, ...],
    masks: tuple[Tensor, ...],
) -> None:
    """Check that a block accelerated by PyTorch is fast, and the same in every call.

    ``run`` calls the block with the given arguments.
    """
    exact, own = exact_results(block, run, given), results(run, given)
    with bio.accelerated(block, backend="torch"):
        found = results(run, given)
        assert [part.state for part in bio.report(block)] == ["fast"]
        assert all(map(torch.equal, found, results(run, given)))
    assert_close(found, own, exact, masks)


def check_on_a_gpu(
    block: nn.Module,
    run: Callable[..., Any],
    given: tuple[Any, ...],
    masks: tuple[Tensor, ...],
) -> None:
    """Check that an accelerated block on a GPU is as exact as before, and the same in every call.

    Arguments are those of `check_in_pytorch`.
    """
    exact, own = exact_results(block, run, given), results(run, given)
    with bio.accelerated(block):
        found = results(run, given)
        assert all(map(torch.equal, found, results(run, given)))
    assert_close(found, own, exact, masks)
    assert_as_exact(found, own, exact, masks)


def assert_as_exact(
    found: tuple[Tensor, ...],
    own: tuple[Tensor, ...],
    exact: tuple[Tensor, ...],
    masks: tuple[Tensor, ...],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Check that outputs are as close to those in float64 as upstream's."""
    for x, y, truth, mask in zip(found, own, exact, masks, strict=True):
        kept = mask.cpu().bool()
        assert_no_worse(x.cpu()[kept], truth[kept], y.cpu()[kept], dtype)


def results_under_autocast(
    module: nn.Module, run: Callable[..., Any], given: tuple[Any, ...], device: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the outputs of kernels and of upstream under autocast, which have the same dtypes."""
    with torch.autocast(device, torch.bfloat16):
        own = results(run, given)
        with bio.accelerated(module, backend="triton"):
            found = results(run, given)
            assert [part.state for part in bio.report(module)] == ["fast"]
    assert [x.dtype for x in found] == [x.dtype for x in own]
    return found, own


def assert_as_exact_in_half(
    block: nn.Module,
    run: Callable[..., Any],
    given: tuple[Any, ...],
    masks: tuple[Tensor, ...],
    device: str,
) -> None:
    """Check that kernels are as exact as upstream under autocast, with all inputs in bfloat16.

    Models with such blocks pass tokens, alignments, pairs and masks in this dtype.
    """
    half = tuple(x if x is None else x.bfloat16() for x in given)
    before, exact = (
        [None if x is None else x.clone() for x in half],
        exact_results(block, run, half),
    )
    found, own = results_under_autocast(block, run, half, device)
    assert all(x is None or torch.equal(x, y) for x, y in zip(half, before, strict=True))
    assert_as_exact(found, own, exact, masks, torch.bfloat16)
