"""Queries, keys and values of AlphaGenome from one product: normalized heads, rotated pairs.

    q_h = rotate(norm(x_h))      k = rotate(norm(x_k))      v = norm(x_v)

Every head is normalized on its own. Adjacent columns of queries and keys are rotated (J. Su et
al., "RoFormer", https://arxiv.org/abs/2104.09864).

Source: Ž. Avsec et al., "Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.transformer.rotation import rotate_pairs
from mlff_triton.kernels.types.norm import Norm

_ROWS = 32  # per program


@triton.jit
def _load_normalized(
    x_ptr,
    row,
    known,
    stride,
    weight_ptr,
    bias_ptr,
    EPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Load rows [M, BLOCK] of WIDTH columns and normalize them; columns from WIDTH on are zero."""
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    mask = known[:, None] & inside[None, :]
    x = tl.load(x_ptr + row[:, None] * stride + column[None, :], mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / WIDTH
    centered = tl.where(inside[None, :], x - mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centered * centered, 1) / WIDTH + EPS)
    weight = tl.load(weight_ptr + column, inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, inside, other=0.0).to(tl.float32)
    return centered * scale[:, None] * weight[None, :] + bias[None, :]


@triton.jit
def _rotate(x, row, known, length, cos_ptr, sin_ptr, DIM: tl.constexpr):
    """Rotate the pairs of rows [M, D] by the angles of their positions."""
    M: tl.constexpr = x.shape[0]
    D: tl.constexpr = x.shape[1]
    pair = tl.arange(0, D // 2)
    mask = known[:, None] & (pair < DIM // 2)[None, :]
    offsets = (row % length)[:, None] * (DIM // 2) + pair[None, :]
    cos = tl.load(cos_ptr + offsets, mask, other=1.0)
    sin = tl.load(sin_ptr + offsets, mask, other=0.0)
    return rotate_pairs(x, cos, sin, M, D)


@triton.jit
def _attention_inputs_fwd_kernel(
    x_ptr,
    q_weight_ptr,
    q_bias_ptr,
    k_weight_ptr,
    k_bias_ptr,
    v_weight_ptr,
    v_bias_ptr,
    cos_ptr,
    sin_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    n_rows,
    length,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    Q_EPS: tl.constexpr,
    K_EPS: tl.constexpr,
    V_EPS: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    M: tl.constexpr,
):
    """Write q [n_rows, HEADS, DIM], k [n_rows, DIM] and v [n_rows, VALUE_DIM].

    Reads x [n_rows, HEADS DIM + DIM + VALUE_DIM]. Grid: (blocks of M rows, HEADS + 2). The last two
    programs of a block compute keys and values.
    """
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    part = tl.program_id(1)
    known = row < n_rows
    stride: tl.constexpr = HEADS * DIM + DIM + VALUE_DIM
    x_ptr += part * DIM
    d, v = tl.arange(0, D), tl.arange(0, V)
    mask = known[:, None] & (d < DIM)[None, :]
    if part < HEADS:
        x = _load_normalized(x_ptr, row, known, stride, q_weight_ptr, q_bias_ptr, Q_EPS, DIM, D)
        x = _rotate(x, row, known, length, cos_ptr, sin_ptr, DIM)
        pointers = q_ptr + row[:, None] * (HEADS * DIM) + part * DIM + d[None, :]
        tl.store(pointers, x.to(q_ptr.dtype.element_ty), mask)
    elif part == HEADS:
        x = _load_normalized(x_ptr, row, known, stride, k_weight_ptr, k_bias_ptr, K_EPS, DIM, D)
        x = _rotate(x, row, known, length, cos_ptr, sin_ptr, DIM)
        tl.store(k_ptr + row[:, None] * DIM + d[None, :], x.to(k_ptr.dtype.element_ty), mask)
    else:
        values = _load_normalized(
            x_ptr, row, known, stride, v_weight_ptr, v_bias_ptr, V_EPS, VALUE_DIM, V
        )
        pointers = v_ptr + row[:, None] * VALUE_DIM + v[None, :]
        inside = known[:, None] & (v < VALUE_DIM)[None, :]
        tl.store(pointers, values.to(v_ptr.dtype.element_ty), inside)


def attention_inputs(
    x: Tensor, q_norm: Norm, k_norm: Norm, v_norm: Norm, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize and rotate queries, keys and values that share one product, without gradients.

    Parameters
    ----------
    x : [B, S, H D + D + V]
        Queries of H heads, then keys and values of all heads; contiguous.
    q_norm, k_norm, v_norm : Norm
        Layer normalizations of a head, whose weights have D, D and V elements.
    cos, sin : float32 [S, D / 2]
        Cosine and sine of the angle of each position and pair of columns.

    Returns
    -------
    q, k, v : [B, S, H, D], [B, S, D], [B, S, V]
        Of the dtype of ``x``.
    """
    batch, length, width = x.shape
    dim, value_dim = len(q_norm[0]), len(v_norm[0])
    heads = (width - dim - value_dim) // dim
    q = x.new_empty(batch, length, heads, dim)
    k, v = x.new_empty(batch, length, dim), x.new_empty(batch, length, value_dim)
    norms = q_norm, k_norm, v_norm
    with torch.cuda.device_of(x):
        _attention_inputs_fwd_kernel[(triton.cdiv(batch * length, _ROWS), heads + 2)](
            x,
            *(part for weight, bias, _ in norms for part in (weight, bias)),
            cos,
            sin,
            *(q, k, v),
            batch * length,
            length,
            heads,
            dim,
            value_dim,
            *(eps for _, _, eps in norms),
            D=triton.next_power_of_2(dim),
            V=triton.next_power_of_2(value_dim),
            M=_ROWS,
            num_warps=4,
        )
    return q, k, v
