"""Matrix products of rows of edges, with what follows each product.

    out = act(x w + b)      or      x w + b      or      (x w) s

with slopes s of the activation, which the first form returns. Tiles that no row of a chunk reaches
are skipped.

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
from mlff_triton.kernels.common.split_products import end_sum
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
    KIND: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    DESCRIBED: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Compute a block [M, N] of a product. Grid: (blocks of columns, the innermost, and of rows,).

    Reads ``x[2 or 1, n_rows, N_IN]`` and ``weight[2 or 1, N_IN, N_OUT]``, both by descriptors if
    DESCRIBED, ``bias[N_OUT]`` or None, and ``ends[N]``. Writes ``out``. KIND tells what it is:
    "hidden" are activations [2 or 1, n_rows, N_OUT], which are stored with their slopes
    ``slope[n_rows, N_OUT]`` unless None; "gradient" are products with slopes that are read, of the
    same shape; and "output" are the products [n_rows, N_OUT].
    """
    wait_for_previous(EARLY_LAUNCH)
    columns: tl.constexpr = N_OUT // N
    column, row = tl.program_id(0) % columns * N, tl.program_id(0) // columns * M
    if row < rows_before(ends_ptr, last) - rows_before(ends_ptr, first):
        acc = tl.zeros([M, N], tl.float64 if out_ptr.dtype.element_ty == tl.float64 else tl.float32)
        for k in tl.range(0, N_IN, K, num_stages=STAGES):
            high = _load_tile(x, row, k, N_IN, M, K, DESCRIBED)
            w_high = _load_tile(weight, k, column, N_OUT, K, N, DESCRIBED)
            if PRECISION == "halves":
                low = _load_tile(x, n_rows + row, k, N_IN, M, K, DESCRIBED)
                w_low = _load_tile(weight, N_IN + k, column, N_OUT, K, N, DESCRIBED)
                acc += tl.dot(high, w_high, tl.dot(high, w_low, tl.dot(low, w_high)))
            else:
                acc = tl.dot(high, w_high, acc, input_precision=PRECISION, out_dtype=acc.dtype)
        z = end_sum(acc, PRECISION)
        channel = column + tl.arange(0, N)[None, :]
        if bias_ptr is not None:
            if PRECISION == "halves":
                z *= 1 / _VALUE_SCALE
            z += tl.load(bias_ptr + channel)
        offset = (row + tl.arange(0, M)).to(tl.int64)[:, None] * N_OUT + channel
        if KIND == "output":
            tl.store(out_ptr + offset, z)
        else:
            if KIND == "hidden":
                z, slope = activate_with_slope(z, ACTIVATION)
                if PRECISION == "halves":
                    z *= _VALUE_SCALE
                if slope_ptr is not None:
                    tl.store(slope_ptr + offset, slope)
            else:
                z *= tl.load(slope_ptr + offset)
            low_offset = tl.cast(n_rows, tl.int64) * N_OUT
            store_factors(out_ptr + offset, low_offset, z, None, PRECISION)


def row_products(
    chunk: Chunk,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    network: InteractionNetwork,
    *,
    kind: str,
    slope: Tensor | None = None,
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
        Output.
    network : InteractionNetwork
        Network that the map belongs to.
    kind : {"hidden", "gradient", "output"}
        Activations, gradients of the values before them, or the product itself.
    slope : [rows, O], optional
        Slopes of the activation: output for "hidden", and input for "gradient".
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
        KIND=kind,
        ACTIVATION=network.activation,
        PRECISION="halves" if x.dtype == torch.float16 else precision(network, x),
        DESCRIBED=described,
        num_warps=blocks.warps,
        **early_launch(x),
    )
