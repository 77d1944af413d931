"""Linear layers of Transformer encoders over packed rows, fused with normalization and epilogue.

    y = epilogue(norm(x) W^T + b)      norm(x) = (x - mean) / sqrt(var + eps), or x itself

The weight and bias of the normalization are folded into W and b, so the product can use rows that
are not normalized:

    norm(x) W^T = rstd (x W^T) - (rstd mean) (W 1)

Mean and variance come from `Moments`, which the kernel that writes the rows stores as well. The
epilogue is an activation, the addition of a residual that may be normalized first, or rotary
position embeddings (J. Su et al., "RoFormer", https://arxiv.org/abs/2104.09864).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.early_launch import allow_next, early_launch, wait_for_previous
from mlff_triton.kernels.common.tiles import tile_in_group
from mlff_triton.kernels.numerics.product import exact_precision
from mlff_triton.kernels.transformer.rotation import (
    Rotary,
    load_angles,
    rotary_arguments,
    rotate_pairs,
)


@triton.jit
def load_moments(moments_ptr, rows, row_mask, capacity, n_parts, PARTS: tl.constexpr):
    """Load partial sums of rows and of the squares of rows, both [M, PARTS]."""
    part = tl.arange(0, PARTS)
    pointers = moments_ptr + part[None, :].to(tl.int64) * capacity + rows[:, None]
    mask = row_mask[:, None] & (part < n_parts)[None, :]
    sums = tl.load(pointers, mask, other=0.0)
    return sums, tl.load(pointers + n_parts * capacity, mask, other=0.0)


@triton.jit
def statistics(sums, squares, channels, eps):
    """Compute mean and inverse standard deviation [M] from partial sums [M, PARTS]."""
    mean = tl.sum(sums, 1) / channels
    variance = tl.maximum(tl.sum(squares, 1) / channels - mean * mean, 0.0)
    return mean, 1 / tl.sqrt((variance + eps).to(sums.dtype))


@triton.jit
def normalize_product(acc, mean, rstd, row_sum):
    """Turn the product of rows [M, N] into that of normalized rows."""
    return rstd[:, None] * (acc - mean[:, None] * row_sum[None, :])


@triton.jit
def token_product(
    x_ptr,
    weight_ptr,
    rows,
    row_mask,
    columns,
    column_mask,
    n_in,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Multiply rows by the transposed weight, and return a block [M, N]."""
    k = tl.arange(0, K)
    acc = tl.zeros((M, N), ACCUMULATE)
    for start in range(0, n_in, K):
        k_mask = start + k < n_in
        x = tl.load(
            x_ptr + rows[:, None] * n_in + (start + k)[None, :],
            row_mask[:, None] & k_mask[None, :],
            other=0.0,
        )  # [M, K]
        weight = tl.load(
            weight_ptr + columns[None, :].to(tl.int64) * n_in + (start + k)[:, None],
            column_mask[None, :] & k_mask[:, None],
            other=0.0,
        )  # [K, N]
        acc = tl.dot(x, weight, acc, input_precision=PRECISION, out_dtype=ACCUMULATE)
    return acc


@triton.jit
def _load_residual(
    pointers,
    offsets,
    rows,
    row_mask,
    columns,
    column_mask,
    capacity,
    n_parts,
    PARTS: tl.constexpr,
):
    """Load a block [M, N] of the residual, and its moments, weight and bias if it has any.

    Returns (), a tuple of the block, or a tuple of the block, two sums, weight and bias.
    """
    residual_ptr, moments_ptr, weight_ptr, bias_ptr = pointers
    loaded = ()
    if residual_ptr is not None:
        mask = row_mask[:, None] & column_mask[None, :]
        loaded = (tl.load(residual_ptr + offsets, mask, other=0.0),)  # type: ignore[assignment]
        if moments_ptr is not None:
            moments = load_moments(moments_ptr, rows, row_mask, capacity, n_parts, PARTS)
            weight = tl.load(weight_ptr + columns, column_mask, other=0.0)
            bias = tl.load(bias_ptr + columns, column_mask, other=0.0)
            loaded = loaded + moments + (weight, bias)
    return loaded


@triton.jit
def _add_residual(acc, loaded, channels, eps):
    """Add the residual from `_load_residual`, normalized by its moments if there are any."""
    if len(loaded) > 0:
        residual = loaded[0].to(acc.dtype)
        if len(loaded) > 1:
            mean, rstd = statistics(loaded[1], loaded[2], channels, eps)
            residual = (residual - mean[:, None]) * rstd[:, None]
            residual = residual * loaded[3].to(residual.dtype)[None, :]
            residual += loaded[4].to(residual.dtype)[None, :]
        acc += residual
    return acc


@triton.jit
def _store_moments(moments_ptr, values, part, n_parts, rows, row_mask, capacity):
    """Store the sums of one column block [M, N] of rows, and of its squares."""
    pointers = moments_ptr + part.to(tl.int64) * capacity + rows
    tl.store(pointers, tl.sum(values, 1), row_mask)
    tl.store(pointers + n_parts * capacity, tl.sum(values * values, 1), row_mask)


@triton.jit(do_not_specialize=["n_rows"])
def _token_linear_fwd_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    row_sum_ptr,
    moments_ptr,
    y_ptr,
    y_moments_ptr,
    residual_ptrs,
    angle_ptrs,
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
    """Write rows y [n_rows, n_out], and their moments [2, blocks of N columns, n_rows] if wanted.

    Reads rows x [n_rows, n_in], weight [n_out, n_in], bias and row sums [n_out], moments of x
    [2, n_parts, n_rows], the residual [n_rows, n_out] with its moments, weight and bias [n_out],
    and angles (see `load_angles`). Rows from ``live`` [1] on are not written. Grid: (blocks of y,),
    in the order of `tile_in_group`.
    """
    allow_next(EARLY_LAUNCH)
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
    row_mask, column_mask = rows < n_rows, columns < n_out
    place = rows, row_mask, columns, column_mask
    mask = row_mask[:, None] & column_mask[None, :]
    offsets = rows[:, None] * n_out + columns[None, :]

    # Inputs of the epilogue are loaded first, so that these loads overlap with the product.
    bias = tl.load(bias_ptr + columns, column_mask, other=0.0).to(ACCUMULATE)
    if moments_ptr is not None:
        sums, squares = load_moments(moments_ptr, rows, row_mask, capacity, n_parts, PARTS)
        row_sum = tl.load(row_sum_ptr + columns, column_mask, other=0.0)
    residual = _load_residual(
        residual_ptrs, offsets, *place, capacity, n_residual_parts, RESIDUAL_PARTS
    )
    if ROTATED:
        angles = load_angles(
            rows, row_mask, column, *angle_ptrs, n_positions, ROTATED, HALF, N, ACCUMULATE
        )

    acc = token_product(x_ptr, weight_ptr, *place, n_in, PRECISION, ACCUMULATE, M, N, K)
    if moments_ptr is not None:
        mean, rstd = statistics(sums, squares, n_in, eps)
        acc = normalize_product(acc, mean, rstd, row_sum)
    acc = activate(acc + bias[None, :], ACTIVATION)
    acc = _add_residual(acc, residual, n_out, residual_eps)
    if ROTATED:
        acc = rotate_pairs(acc, *angles, M, N)
    y = acc.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + offsets, y, mask)
    if y_moments_ptr is not None:
        values = tl.where(mask, y.to(ACCUMULATE), 0.0)
        n_y_parts = tl.cdiv(n_out, N)
        _store_moments(y_moments_ptr, values, column // N, n_y_parts, rows, row_mask, capacity)


class Moments(NamedTuple):
    """Sums of rows and of their squares.

    Attributes
    ----------
    sums : [2, P, T]
        Sums of the elements and of their squares over P parts of the columns; float32 or float64.
    eps : float
        Added to the variance when the rows are normalized.
    """

    sums: Tensor
    eps: float


class TokenLinear(NamedTuple):
    """A linear layer, with the normalization before it folded into its weight and bias.

    Attributes
    ----------
    weight, bias : [N, K], [N]
        Weight and bias of the layer, including those of the normalization if there is one.
    row_sum : [N] or None
        Sums of the rows of the weight, float32 or float64; None without a normalization.
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
        """Fold the weight and bias of a normalization into a layer."""
        if norm is None:
            return cls(weight.to(dtype).contiguous(), bias.to(dtype).contiguous(), None)
        scale, shift = norm[0].double(), norm[1].double()
        folded = (weight.double() * scale).to(dtype).contiguous()
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        row_sum = folded.double().sum(1).to(exact)
        return cls(folded, (bias.double() + weight.double() @ shift).to(dtype), row_sum)


class Residual(NamedTuple):
    """Rows to add to the result of a layer.

    Attributes
    ----------
    rows : [T, N]
        The rows, contiguous.
    moments : Moments, optional
        Moments of the rows, if they are to be normalized first.
    weight, bias : [N], optional
        Weight and bias of that normalization.
    """

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
    """Return the smallest tile that fills the GPU, as measured on an H200 with 320 channels."""
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
    """Rows [T, N], and the sums of `Moments` for them if requested."""

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
    """Apply a linear layer to packed rows, without gradients.

    Parameters
    ----------
    x : [T, K]
        Rows, contiguous.
    layer : TokenLinear
        Weight and bias, of the dtype of ``x``.
    live : int32 [1], optional
        Number of leading rows to compute, read on the device; all by default. The other rows of
        the result are uninitialized.
    moments : Moments, optional
        Moments of the rows; required if the layer contains a normalization.
    activation : str
        As for `mlff_triton.kernels.ops.linear.linear`.
    residual : Residual, optional
        Rows to add after the activation.
    rotary : Rotary, optional
        Rotation of the leading columns, applied last.
    with_moments : bool
        If True, also return the sums [2, P, T] of the new rows for `Moments`.
    dtype : torch.dtype, optional
        Dtype of the new rows; that of ``x`` by default.

    Returns
    -------
    Rows
        The new rows [T, N], and their sums or None.

    Raises
    ------
    InputError
        If moments are missing for a layer with a normalization, or given for one without.
    """
    sums, eps, n_parts = moment_arguments(moments, layer)
    n_rows, n_in = x.shape
    n_out = len(layer.weight)
    y = x.new_empty(n_rows, n_out, dtype=dtype)
    tile = _tile(n_rows, n_out, n_in, x.element_size())
    n_y_parts = triton.cdiv(n_out, tile.columns)
    y_sums = None
    if with_moments:
        exact = torch.promote_types(x.dtype, torch.float32)
        y_sums = torch.empty(2, n_y_parts, n_rows, dtype=exact, device=x.device)
    if not y.numel():
        return Rows(y, y_sums)
    added, added_moments, added_weight, added_bias = residual or (None,) * 4
    added_sums, added_eps, n_added_parts = _unpack(added_moments)
    (*angles, n_positions), options = rotary_arguments(rotary)
    half = x.element_size() == 2
    with torch.cuda.device_of(x):
        _token_linear_fwd_kernel[(triton.cdiv(n_rows, tile.rows) * n_y_parts,)](
            x,
            layer.weight,
            layer.bias,
            layer.row_sum,
            sums,
            y,
            y_sums,
            (added, added_sums, added_weight, added_bias),
            tuple(angles),
            live,
            n_positions,
            n_rows,
            n_out,
            n_in,
            n_parts,
            n_added_parts,
            eps,
            added_eps,
            **options,
            ACTIVATION="gelu_half" if half and activation == "gelu" else activation,
            PRECISION=exact_precision(x),
            ACCUMULATE=accumulator(x),
            PARTS=triton.next_power_of_2(n_parts),
            RESIDUAL_PARTS=triton.next_power_of_2(n_added_parts),
            M=tile.rows,
            N=tile.columns,
            K=tile.inner,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **early_launch(x),
        )
    return Rows(y, y_sums)


def moment_arguments(
    moments: Moments | None, layer: TokenLinear
) -> tuple[Tensor | None, float, int]:
    """Return the sums, eps and number of parts of the moments that a layer needs.

    Raises
    ------
    InputError
        If moments are missing for a layer with a normalization, or given for one without.
    """
    if moments is None and layer.row_sum is not None:
        raise InputError("the layer contains a normalization: pass the moments of its rows")
    if moments is not None and layer.row_sum is None:
        raise InputError("the layer contains no normalization: pass no moments")
    return _unpack(moments)


def _unpack(moments: Moments | None) -> tuple[Tensor | None, float, int]:
    return (None, 0.0, 1) if moments is None else (*moments, moments.sums.shape[1])
