"""Calls of all operators on pairs of tokens, for `launch_cases`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.attention_update import token_attention_, triangle_attention_
from mlff_triton.kernels.pairs.conditioning import (
    conditioned_attention_,
    conditioned_layers_,
    conditioned_transition_,
    conditioned_windows_,
)
from mlff_triton.kernels.pairs.outer_product_mean import outer_product_mean_
from mlff_triton.kernels.pairs.pair_attention import pair_attention, triangle_attention
from mlff_triton.kernels.pairs.pair_average import pair_average_
from mlff_triton.kernels.pairs.split_linear import split_linear, split_rows
from mlff_triton.kernels.pairs.transition import transition_
from mlff_triton.kernels.pairs.triangle_multiplication import triangle_multiplication_
from mlff_triton.kernels.pairs.types import (
    AverageWeights,
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
    Conditions,
    OuterProductWeights,
    TokenAttentionWeights,
    TransitionWeights,
    TriangleAttentionWeights,
    TriangleWeights,
    WindowAttentionWeights,
    WindowConditions,
)
from mlff_triton.kernels.pairs.window_attention import window_attention

N = 24  # tokens


def triangles(dtype: torch.dtype, n: int = N, heads: int = 4) -> object:
    """Attend along rows and columns, with a mask and without."""
    q, k, v = torch.zeros(1, n, n, 3, heads, 32, dtype=dtype).unbind(3)
    bias, mask = torch.zeros(1, heads, n, n, dtype=dtype), torch.ones(1, n, n)
    triangle_attention(q, k, v, bias)
    return triangle_attention(q, k, v, bias, mask.bool(), ending=True)


def samples(dim: int, dtype: torch.dtype) -> object:
    """Attend in few and in many samples that share their biases, with a mask and without."""
    for count in (5, 40):
        q, k, v = torch.zeros(1, count, N, 3, 16, dim, dtype=dtype).unbind(3)
        bias = torch.zeros(1, 16, N, N)
        pair_attention(q, k, v, bias)
        found = pair_attention(q, k, v, bias, torch.ones(1, count, N))
    return found


def updates(channels: int, dtype: torch.dtype, n: int = N, hidden: int | None = None) -> object:
    """Multiply along both kinds of edges, with residual streams of both dtypes."""
    hidden = hidden or channels
    weight, bias = torch.ones(2, channels, dtype=dtype)
    shapes = (2 * hidden, channels), (2 * hidden, channels), (channels, hidden), (channels,) * 2
    maps = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    norm_out = torch.ones(hidden, dtype=dtype), None, 1e-5
    given = TriangleWeights((weight, bias, 1e-5), norm_out, *maps)
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


def attention_updates(channels: int, dtype: torch.dtype, n: int = N) -> object:
    """Update pairs along rows and columns, with residual streams of both dtypes."""
    weight, bias = torch.ones(2, channels, dtype=dtype)
    square = torch.zeros(channels, channels, dtype=dtype)
    biases = torch.zeros(channels // 32, channels, dtype=dtype)
    norm = weight, bias, 1e-5
    given = TriangleAttentionWeights(norm, square, square, square, square, biases, square)
    z = torch.zeros(1, n, n, channels)
    triangle_attention_(z, given, torch.ones(1, n, n), ending=True, bias_of_ending="query")
    return triangle_attention_(z.to(dtype), given)


def token_updates(channels: int, dtype: torch.dtype) -> object:
    """Update tokens of samples with 16 heads."""
    weight, bias = torch.ones(2, channels, dtype=dtype)
    square = torch.zeros(channels, channels, dtype=dtype)
    norm = weight, bias, 1e-5
    given = TokenAttentionWeights(norm, square, square, square, square, square, bias)
    biases = torch.zeros(1, 16, N, N, dtype=dtype)
    return token_attention_(torch.zeros(1, 5, N, channels), biases, given)


def conditioned(channels: int, dtype: torch.dtype) -> object:
    """Update tokens of samples that share their conditioning, with 16 heads."""
    x, shared = torch.zeros(1, 5, N, channels), torch.zeros(1, 1, N, channels, dtype=dtype)
    terms = Conditions(*[shared.expand(-1, 5, -1, -1)] * 3)
    wide, bias = torch.zeros(4 * channels, channels, dtype=dtype), torch.zeros(1, 16, N, N)
    attention = ConditionedAttentionWeights(wide, wide[:, 0], wide[:channels])
    conditioned_attention_(x, terms, bias, attention)
    half = wide.view(channels, 4 * channels)[:, : 2 * channels]
    layer = attention, ConditionedTransitionWeights(wide, half)
    conditioned_layers_(x, [terms, terms], [bias], [layer])
    conditioned_transition_(x, terms, ConditionedTransitionWeights(wide, half))
    wider = torch.zeros(6 * channels, channels, dtype=dtype)
    transition = ConditionedTransitionWeights(wider, half)
    if dtype == torch.float32:
        split, down = SplitOperand.of(wide), SplitOperand.of(half)
        own = ConditionedAttentionWeights(split, wide[:, 0], SplitOperand.of(wide[:channels]))
        conditioned_attention_(x, terms, bias, own)
        conditioned_layers_(
            x, [terms, terms], [bias], [(own, ConditionedTransitionWeights(split, down))]
        )
        transition = ConditionedTransitionWeights(SplitOperand.of(wider), down)
    return conditioned_transition_(x, terms, transition)


def splits() -> object:
    """Apply split maps to few, more and many rows."""
    weight = SplitOperand.of(torch.zeros(512, 768))
    split_linear(split_rows(torch.zeros(N, 768)), weight, torch.zeros(512))
    split_linear(split_rows(torch.zeros(2048, 768)), weight)
    return split_linear(split_rows(torch.zeros(8192, 768)), weight)


def windows(dtype: torch.dtype) -> object:
    """Attend to atoms within windows of 32 queries and 128 keys, with 4 heads of 32 channels."""
    packed = torch.zeros(1, 5, 64, 3, 4, 32, dtype=dtype)
    bias, mask = torch.zeros(1, 2, 4, 32, 128), torch.ones(1, 5, 64)
    window_attention(*packed.unbind(-3), bias)
    x, shared = torch.zeros(1, 5, 64, 128), torch.zeros(1, 1, 64, 128, dtype=dtype)
    terms = WindowConditions(*[shared.expand(-1, 5, -1, -1)] * 5)
    wide, starts = torch.zeros(256, 128, dtype=dtype), torch.zeros(2, dtype=torch.int32)
    maps = wide, wide[:, 0].contiguous(), wide, wide[:128]
    for chained in (False, True):
        weights = WindowAttentionWeights(*maps, chained)
        conditioned_windows_(x, terms, bias, weights, mask, starts)
    return window_attention(*packed.unbind(-3), bias.to(dtype), mask)


def alignments(channels: int, dtype: torch.dtype) -> object:
    """Update an alignment by pairs of 128 channels, and those by the alignment."""
    weight, bias = torch.ones(2, channels, dtype=dtype)
    norm, pair_norm = (weight, bias, 1e-5), (torch.ones(128, dtype=dtype), None, 1e-5)
    msa, z = torch.zeros(1, 40, N, channels), torch.zeros(1, N, N, 128)
    wide = torch.zeros(256, channels, dtype=dtype)
    biases = torch.zeros(8, 128, dtype=dtype)
    pair_average_(msa, z, AverageWeights(norm, pair_norm, wide, wide, biases, wide.T))
    out, out_bias = torch.zeros(128, 1024, dtype=dtype), torch.zeros(128, dtype=dtype)
    given = OuterProductWeights(norm, wide[:32], wide[:32], out, out_bias)
    outer_product_mean_(z, msa, given, torch.ones(1, 40, N))
    return outer_product_mean_(z, msa, given._replace(out_bias=None), eps=1e-3)


def pair_calls(*dtypes: torch.dtype) -> dict[str, Callable[[], object]]:
    """Operators with the channels of Boltz, Protenix and OpenFold3."""
    calls: dict[str, Callable[[], object]] = {"split_linear": splits}
    for dtype in dtypes:
        calls[f"triangle_attention, {dtype}"] = partial(triangles, dtype)
        for dim in (24, 48):
            calls[f"pair_attention, {dim} channels, {dtype}"] = partial(samples, dim, dtype)
        for channels in (128, 256):
            name = f"{channels} channels, {dtype}"
            calls[f"triangle_multiplication, {name}"] = partial(updates, channels, dtype)
            calls[f"triangle_attention_, {name}"] = partial(attention_updates, channels, dtype)
        # The templates of Protenix, and fewer hidden channels than are split.
        for channels, hidden in ((64, 128), (128, 32), (256, 16)):
            name = f"{channels} channels, {hidden} hidden, {dtype}"
            calls[f"triangle_multiplication, {name}"] = partial(
                updates, channels, dtype, hidden=hidden
            )
        calls[f"token_attention_, {dtype}"] = partial(token_updates, 384, dtype)
        calls[f"window_attention, {dtype}"] = partial(windows, dtype)
        calls[f"conditioned updates, {dtype}"] = partial(conditioned, 768, dtype)
        calls[f"pair_average_, outer_product_mean_, {dtype}"] = partial(alignments, 64, dtype)
        for channels in (128, 256, 384):
            calls[f"transition, {channels} channels, {dtype}"] = partial(
                transitions, channels, dtype
            )
    # Triton compiles sizes of one as constants.
    calls["triangle_attention, one token"] = partial(triangles, torch.float16, 1, 1)
    calls["triangle_multiplication, one token"] = partial(updates, 128, torch.float16, 1)
    return calls
