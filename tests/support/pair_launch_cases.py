"""Calls of all operators on pairs of tokens, for `launch_cases`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mlff_triton.kernels.pairs.pair_attention import pair_attention, triangle_attention
from mlff_triton.kernels.pairs.transition import transition_
from mlff_triton.kernels.pairs.triangle_multiplication import triangle_multiplication_
from mlff_triton.kernels.types.pair_stack import TransitionWeights, TriangleWeights

N = 24  # tokens
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def triangles(dtype: torch.dtype, n: int = N, heads: int = 4) -> object:
    """Attend along rows and columns, with a mask and without."""
    q, k, v = torch.zeros(1, n, n, 3, heads, 32, dtype=dtype).unbind(3)
    bias, mask = torch.zeros(1, heads, n, n, dtype=dtype), torch.ones(1, n, n)
    triangle_attention(q, k, v, bias)
    return triangle_attention(q, k, v, bias, mask.bool(), ending=True)


def samples(dim: int, dtype: torch.dtype) -> object:
    """Attend in five samples that share their biases."""
    q, k, v = torch.zeros(1, 5, N, 3, 16, dim, dtype=dtype).unbind(3)
    return pair_attention(q, k, v, torch.zeros(1, 16, N, N), torch.ones(1, 5, N))


def updates(channels: int, dtype: torch.dtype, n: int = N) -> object:
    """Multiply along both kinds of edges, with residual streams of both dtypes."""
    weight, bias = torch.ones(2, channels, dtype=dtype)
    maps = [torch.zeros(n * channels, channels, dtype=dtype) for n in (2, 2, 1, 1)]
    given = TriangleWeights((weight, bias, 1e-5), (weight, None, 1e-5), *maps)
    z = torch.zeros(1, n, n, channels)
    triangle_multiplication_(z, given, torch.ones(1, n, n))
    return triangle_multiplication_(z.to(dtype), given, incoming=True)


def transitions(channels: int, dtype: torch.dtype) -> object:
    """Update rows, with residual streams of both dtypes."""
    weight, bias = torch.ones(2, channels, dtype=dtype)
    wide = torch.zeros(4 * channels, channels, dtype=dtype)
    given = TransitionWeights((weight, bias, 1e-5), wide, wide, wide.T)
    transition_(torch.zeros(1, N, N, channels), given)
    return transition_(torch.zeros(1, N, N, channels, dtype=dtype), given)


def pair_calls() -> dict[str, Callable[[], object]]:
    """Operators with the channels of Boltz, Protenix and OpenFold3."""
    calls: dict[str, Callable[[], object]] = {}
    for dtype in DTYPES:
        calls[f"triangle_attention, {dtype}"] = partial(triangles, dtype)
        for dim in (24, 48):
            calls[f"pair_attention, {dim} channels, {dtype}"] = partial(samples, dim, dtype)
        for channels in (128, 256):
            name = f"{channels} channels, {dtype}"
            calls[f"triangle_multiplication, {name}"] = partial(updates, channels, dtype)
        for channels in (128, 256, 384):
            calls[f"transition, {channels} channels, {dtype}"] = partial(
                transitions, channels, dtype
            )
    # Triton compiles sizes of one as constants.
    calls["triangle_attention, one token"] = partial(triangles, torch.float16, 1, 1)
    calls["triangle_multiplication, one token"] = partial(updates, 128, torch.float16, 1)
    return calls
