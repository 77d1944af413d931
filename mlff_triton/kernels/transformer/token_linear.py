"""Linear layers of Transformer encoders over packed rows, with all that comes before and after.

    y = epilogue(norm(x) W^T + b)      norm(x) = (x - mean) / sqrt(var + eps), or x as it is

Weight and bias of the normalization are in W and b. Then W need not see normalized rows:

    norm(x) W^T = rstd (x W^T) - (rstd mean) (W 1)

Mean and variance come from `Moments`, which whoever makes the rows leaves with them. What comes
after: an activation; a residual, normalized in turn if need be; or rotary position embeddings
(J. Su et al., "RoFormer", https://arxiv.org/abs/2104.09864).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.hardware import exact_precision
from mlff_triton.kernels.common.tiles import tile_in_group
from mlff_triton.kernels.transformer.rotation import (
    Rotary,
    load_angles,
    rotary_arguments,
    rotate_pairs,
)


@triton.jit
def load_sums(moments_ptr, rows, inside, capacity, n_parts, PARTS: tl.constexpr):
    """Sums of rows and of their squares, by parts [M, PARTS]."""
    part = tl.arange(0, PARTS)
    at = moments_ptr + part[None, :].to(tl.int64) * capacity + rows[:, None]
    there = inside[:, None] & (part < n_parts)[None, :]
    return tl.load(at, there, other=0.0), tl.load(at + n_parts * capacity, there, other=0.0)


@triton.jit
def statistics(sums, squares, channels, eps):
    """Mean and inverse standard deviation of rows."""
    mean = tl.sum(sums, 1) / channels
    variance = tl.maximum(tl.sum(squares, 1) / channels - mean * mean, 0.0)
    return mean, 1 / tl.sqrt((variance + eps).to(sums.dtype))


@triton.jit
def product(
    x_ptr,
    weight_ptr,
    rows,
    inside,
    columns,
    known,
    n_in,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Rows times the transposed weight, [M, N]."""
    k = tl.arange(0, K)
    acc = tl.zeros((M, N), ACCUMULATE)
    for start in range(0, n_in, K):
        held = start + k < n_in
        x = tl.load(
            x_ptr + rows[:, None] * n_in + (start + k)[None, :],
            inside[:, None] & held[None, :],
            other=0.0,
        )  # [M, K]
        weight = tl.load(
            weight_ptr + columns[None, :].to(tl.int64) * n_in + (start + k)[:, None],
            known[None, :] & held[:, None],
            other=0.0,
        )  # [K, N]
        acc = tl.dot(x, weight, acc, input_precision=PRECISION, out_dtype=ACCUMULATE)
    return acc


@triton.jit
def _token_linear_fwd_kernel(  # noqa: C901 - cases are known as it is compiled
    x_ptr,
    weight_ptr,
    bias_ptr,
    row_sum_ptr,
    moments_ptr,
    y_ptr,
    y_moments_ptr,
    residual_ptr,
    residual_moments_ptr,
    residual_weight_ptr,
    residual_bias_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    live_ptr,
    n_positions,
    n_rows,
    n_out,
    n_in,
    n_parts,
    n_residual_parts,
    eps: tl.float64,
    residual_eps: tl.float64,
    ROTATED: tl.constexpr,
    HALF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    PARTS: tl.constexpr,
    RESIDUAL_PARTS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    wait_for_previous(EARLY_LAUNCH)
    capacity = n_rows
    if live_ptr is not None:
        n_rows = tl.minimum(n_rows, tl.load(live_ptr))
    tiles_m, tiles_n = tl.cdiv(n_rows, M), tl.cdiv(n_out, N)
    tile = tl.program_id(0)
    if tile >= tiles_m * tiles_n:
        return
    tile_m, tile_n = tile_in_group(tile, tiles_m, tiles_n)
    rows = tile_m.to(tl.int64) * M + tl.arange(0, M)
    column = tile_n * N
    columns = column + tl.arange(0, N)
    inside, known = rows < n_rows, columns < n_out
    mask = inside[:, None] & known[None, :]
    offsets = rows[:, None] * n_out + columns[None, :]

    # What the product is not needed for is on its way while that is computed.
    bias = tl.load(bias_ptr + columns, known, other=0.0).to(ACCUMULATE)
    if moments_ptr is not None:
        sums, squares = load_sums(moments_ptr, rows, inside, capacity, n_parts, PARTS)
        row_sum = tl.load(row_sum_ptr + columns, known, other=0.0)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + offsets, mask, other=0.0)
        if residual_moments_ptr is not None:
            residual_sums, residual_squares = load_sums(
                residual_moments_ptr, rows, inside, capacity, n_residual_parts, RESIDUAL_PARTS
            )
            residual_weight = tl.load(residual_weight_ptr + columns, known, other=0.0)
            residual_bias = tl.load(residual_bias_ptr + columns, known, other=0.0)
    if ROTATED:
        cos, sin = load_angles(
            rows,
            inside,
            column,
            cos_ptr,
            sin_ptr,
            position_ptr,
            n_positions,
            ROTATED,
            HALF,
            N,
            ACCUMULATE,
        )

    acc = product(
        x_ptr, weight_ptr, rows, inside, columns, known, n_in, PRECISION, ACCUMULATE, M, N, K
    )
    if moments_ptr is not None:
        mean, rstd = statistics(sums, squares, n_in, eps)
        acc = rstd[:, None] * (acc - mean[:, None] * row_sum[None, :])
    acc = activate(acc + bias[None, :], ACTIVATION)
    if residual_ptr is not None:
        residual = residual.to(ACCUMULATE)
        if residual_moments_ptr is not None:
            mean, rstd = statistics(residual_sums, residual_squares, n_out, residual_eps)
            residual = (residual - mean[:, None]) * rstd[:, None]
            residual = residual * residual_weight.to(ACCUMULATE)[None, :]
            residual += residual_bias.to(ACCUMULATE)[None, :]
        acc += residual
    if ROTATED:
        acc = rotate_pairs(acc, cos, sin, M, N)
    y = acc.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + offsets, y, mask)
    if y_moments_ptr is not None:
        numbers = tl.where(mask, y.to(ACCUMULATE), 0.0)
        at = y_moments_ptr + (column // N).to(tl.int64) * capacity + rows
        tl.store(at, tl.sum(numbers, 1), inside)
        tl.store(at + tl.cdiv(n_out, N) * capacity, tl.sum(numbers * numbers, 1), inside)


class Moments(NamedTuple):
    """Sums of rows and of their squares.

    Attributes
    ----------
    sums : [2, P, T]
        Of P parts of the columns each, float32 or float64.
    eps : float
        What a normalization by them adds to the variance.
    """

    sums: Tensor
    eps: float


class TokenLinear(NamedTuple):
    """A linear layer as the kernel wants it.

    Attributes
    ----------
    weight, bias : [N, K], [N]
        With those of the normalization before it, if there is one.
    row_sum : [N] or None
        Sums of the weight's rows, float32 or float64; None without a normalization.
    """

    weight: Tensor
    bias: Tensor
    row_sum: Tensor | None

    @classmethod
    def of(
        cls,
        weight: Tensor,
        bias: Tensor,
        norm: tuple[Tensor, Tensor] | None,
        dtype: torch.dtype,
    ) -> TokenLinear:
        """Take up a normalization's weight and bias."""
        if norm is None:
            return cls(weight.to(dtype).contiguous(), bias.to(dtype).contiguous(), None)
        scale, shift = norm[0].double(), norm[1].double()
        folded = (weight.double() * scale).to(dtype).contiguous()
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        row_sum = folded.double().sum(1).to(exact)
        return cls(folded, (bias.double() + weight.double() @ shift).to(dtype), row_sum)


class Residual(NamedTuple):
    """What to add: rows [T, N], and if they are to be normalized their moments and weights."""

    rows: Tensor
    moments: Moments | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


class _Tile(NamedTuple):
    rows: int
    columns: int
    inner: int
    warps: int
    stages: int


def _tile(n_rows: int, n_out: int, n_in: int, size: int) -> _Tile:
    """Measured on an NVIDIA H200 with 320 channels: the smallest that still fill the chip."""
    inner = 128 // size
    rows = min(64, max(16, triton.next_power_of_2(n_rows)))
    if size > 2:
        return (
            _Tile(min(32, rows), 32, inner, 4, 4) if n_rows <= 256 else _Tile(64, 64, inner, 4, 3)
        )
    if n_rows <= 256:
        if n_in > 512:
            return _Tile(rows, 32, 2 * inner, 4, 3)
        return _Tile(min(32, rows), 32, inner, 2, 4)
    if n_rows <= 1024:
        long = n_rows <= 512 and max(n_out, n_in) > 512
        return _Tile(64, 64, 2 * inner, 4, 3) if long else _Tile(64, 64, inner, 4, 4)
    return _Tile(64, 128, inner, 4, 3) if n_out > 512 else _Tile(64, 64, 2 * inner, 4, 3)


class Rows(NamedTuple):
    """What `token_linear` returns: rows [T, N], and their moments if asked for."""

    x: Tensor
    moments: Tensor | None


def token_linear(
    x: Tensor,
    layer: TokenLinear,
    live: Tensor | None = None,
    *,
    moments: Moments | None = None,
    activation: str = "none",
    residual: Residual | None = None,
    rotary: Rotary | None = None,
    with_moments: bool = False,
    dtype: torch.dtype | None = None,
) -> Rows:
    """A linear layer of rows, of which only some are alive.

    Parameters
    ----------
    x : [T, K]
        Rows, contiguous.
    layer : TokenLinear
        Weight and bias, of the dtype of ``x``.
    live : int32 [1], optional
        How many rows mean something; of the others nothing is computed.
    moments : Moments, optional
        Of the rows, if the layer has a normalization in it.
    activation : str
        As for `mlff_triton.kernels.ops.linear.linear`.
    residual, rotary
        What to add, and what to turn.
    with_moments : bool
        Whether to return sums of the new rows, [2, P, T], as `Moments` wants them.
    dtype : torch.dtype, optional
        Of the new rows; that of ``x`` by default.

    Returns
    -------
    Rows
        No gradients flow.
    """
    assert (moments is None) == (layer.row_sum is None)
    n_rows, n_in = x.shape
    n_out = len(layer.weight)
    y = x.new_empty(n_rows, n_out, dtype=dtype)
    tile = _tile(n_rows, n_out, n_in, x.element_size())
    parts = triton.cdiv(n_out, tile.columns)
    sums = None
    if with_moments:
        exact = torch.promote_types(x.dtype, torch.float32)
        sums = torch.empty(2, parts, n_rows, dtype=exact, device=x.device)
    if not y.numel():
        return Rows(y, sums)
    given, eps, n_parts = unpacked(moments)
    added, of_added, weight, bias = residual or (None,) * 4
    added_sums, residual_eps, n_residual_parts = unpacked(of_added)
    (*turns, n_positions), options = rotary_arguments(rotary)
    half = x.element_size() == 2
    with torch.cuda.device_of(x):
        _token_linear_fwd_kernel[(triton.cdiv(n_rows, tile.rows) * parts,)](
            x,
            layer.weight,
            layer.bias,
            layer.row_sum,
            given,
            y,
            sums,
            added,
            added_sums,
            weight,
            bias,
            *turns,
            live,
            n_positions,
            n_rows,
            n_out,
            n_in,
            n_parts,
            n_residual_parts,
            eps,
            residual_eps,
            **options,
            ACTIVATION="gelu_half" if half and activation == "gelu" else activation,
            PRECISION=exact_precision(x),
            ACCUMULATE=accumulator(x),
            PARTS=triton.next_power_of_2(n_parts),
            RESIDUAL_PARTS=triton.next_power_of_2(n_residual_parts),
            M=tile.rows,
            N=tile.columns,
            K=tile.inner,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **early_launch(x),
        )
    return Rows(y, sums)


def unpacked(moments: Moments | None) -> tuple[Tensor | None, float, int]:
    """Sums, eps, and how many parts."""
    return (None, 0.0, 1) if moments is None else (*moments, moments.sums.shape[1])
