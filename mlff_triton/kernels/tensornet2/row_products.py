"""Matrix products of rows of edges, with the operations that follow each product.

    out = act(x w + b)      or      x w + b      or      (x w) s

with slopes s of the activation, which the first form also returns. Tiles that no row of a chunk
reaches are skipped.

If weights are halves, x is in halves too, and three products of them are added. Tensor cores round
sums toward zero, so each sum over a few channels is rounded to nearest when it is added.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import activate_with_slope
from mlff_triton.kernels.common.descriptors import given, has_descriptors
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.hardware import register_limit
from mlff_triton.kernels.numerics.product import end_sum, product
from mlff_triton.kernels.tensornet2.edge_rows import (
    VALUE_SCALE,
    Chunk,
    precision,
    rows_before,
    store_factors,
)
from mlff_triton.kernels.tensornet2.launch_sizes import product_blocks
from mlff_triton.kernels.types.interaction_network import InteractionNetwork

_VALUE_SCALE = tl.constexpr(VALUE_SCALE)


@triton.jit
def _load_tile(x, row, column, width, M: tl.constexpr, N: tl.constexpr, DESCRIBED: tl.constexpr):
    """Load a tile [M, N] of rows of some width, from a descriptor or a pointer."""
    if DESCRIBED:
        tile = x.load([row, column])
    else:
        rows = (row + tl.arange(0, M)).to(tl.int64)[:, None]
        tile = tl.load(x + rows * width + column + tl.arange(0, N)[None, :])
    return tile


@triton.jit
def _row_products_kernel(
    x,
    weight,
    bias_ptr,
    ends_ptr,
    slope_ptr,
    out_ptr,
    first,
    last,
    n_rows,
    N_IN: tl.constexpr,
    N_OUT: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    STAGES: tl.constexpr,
    ACTIVATE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    FACTORS: tl.constexpr,
    DESCRIBED: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute a block [M, N] of a product. Grid: (blocks of columns, the innermost, and of rows,).

    Reads ``x[2 or 1, n_rows, N_IN]`` and ``weight[2 or 1, N_IN, N_OUT]``, both by descriptors if
    DESCRIBED, ``bias[N_OUT]`` or None, and ``ends[N]``. Writes ``out``, which is
    [2 or 1, n_rows, N_OUT] with FACTORS and [n_rows, N_OUT] without. With ACTIVATE, these are
    activations. Unless it is None, ``slope[n_rows, N_OUT]`` then gets their slopes; without
    ACTIVATE, the products are multiplied by it.
    """
    wait_for_previous(EARLY_LAUNCH)
    columns: tl.constexpr = N_OUT // N
    column, row = tl.program_id(0) % columns * N, tl.program_id(0) // columns * M
    if row < rows_before(ends_ptr, last) - rows_before(ends_ptr, first):
        acc = tl.zeros([M, N], tl.float64 if out_ptr.dtype.element_ty == tl.float64 else tl.float32)
        for k in tl.range(0, N_IN, K, num_stages=STAGES):
            high = _load_tile(x, row, k, N_IN, M, K, DESCRIBED)
            w_high = _load_tile(weight, k, column, N_OUT, K, N, DESCRIBED)
            if PRECISION == "fixed_halves":
                low = _load_tile(x, n_rows + row, k, N_IN, M, K, DESCRIBED)
                w_low = _load_tile(weight, N_IN + k, column, N_OUT, K, N, DESCRIBED)
                acc += product((high, low), (w_high, w_low), PRECISION)
            else:
                acc = tl.dot(high, w_high, acc, input_precision=PRECISION, out_dtype=acc.dtype)
        z = end_sum(acc, PRECISION)
        channel = column + tl.arange(0, N)[None, :]
        if bias_ptr is not None:
            if PRECISION == "fixed_halves":
                z *= 1 / _VALUE_SCALE
            z += tl.load(bias_ptr + channel)
        begin = tl.cast(row, tl.int64) * N_OUT
        offset = tl.arange(0, M)[:, None] * N_OUT + channel
        if ACTIVATE:
            z, slope = activate_with_slope(z, ACTIVATION)
            if PRECISION == "fixed_halves":
                z *= _VALUE_SCALE
            if slope_ptr is not None:
                tl.store(slope_ptr + begin + offset, slope)
        elif slope_ptr is not None:
            z *= tl.load(slope_ptr + begin + offset)
        low = tl.cast(n_rows, tl.int64) * N_OUT
        store_factors(out_ptr + begin + offset, low, z, None, PRECISION if FACTORS else "ieee")


def row_products(
    chunk: Chunk,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    network: InteractionNetwork,
    slope: Tensor | None = None,
    *,
    activate: bool = False,
) -> None:
    """Multiply rows by a weight of a network.

    Parameters
    ----------
    chunk : Chunk
        Atoms whose edges the rows belong to.
    x : [2 or 1, rows, I]
        Rows; activations are scaled if they are halves.
    weight, bias : [2, I, O] or [I, O], [O]
        Map, from inputs to outputs. With a bias, ``x`` are activations.
    out : [2 or 1, rows, O] or [rows, O]
        Output, for further products or for others.
    network : InteractionNetwork
        Network that the map belongs to.
    slope : [rows, O], optional
        Slopes of the activation: output with ``activate``, and otherwise factors of the products.
    activate : bool
        If True, apply the activation.
    """
    n_in, n_out = weight.shape[-2:]
    blocks = product_blocks(x, n_in, n_out)
    described = has_descriptors(x) and x.dtype == torch.float16
    grid = n_out // blocks.columns * (chunk.n_rows // blocks.rows)
    _row_products_kernel[(grid,)](
        given(x.flatten(0, 1), (blocks.rows, blocks.inner), described),
        given(weight.view(-1, n_out), (blocks.inner, blocks.columns), described),
        bias,
        chunk.ends,
        slope,
        out,
        chunk.first,
        chunk.last,
        chunk.n_rows,
        N_IN=n_in,
        N_OUT=n_out,
        M=blocks.rows,
        N=blocks.columns,
        K=blocks.inner,
        STAGES=blocks.stages,
        ACTIVATE=activate,
        ACTIVATION=network.activation,
        PRECISION="fixed_halves" if x.dtype == torch.float16 else precision(network, x),
        FACTORS=out.dim() == 3,
        DESCRIBED=described,
        num_warps=blocks.warps,
        **register_limit(blocks.registers),
        **early_launch(x),
    )
