"""Softmax attention of the tokens of complexes in all eight frames.

    q_if = q_i + sum_k s_kf y_ik A_k      (k and v alike, with K_k and V_k)
    out_if = sum_j softmax_j(q_if . k_jf) v_jf

Here y_ik is the coordinate of token i along axis k, and s_kf is the sign of that axis in frame f.
Keys and values need not be computed for each frame, as

    q_if . k_jf = q_if . k_j + sum_k (s_kf q_if . K_k) y_jk
    out_if = sum_j p_ijf v_j + sum_k s_kf V_k sum_j p_ijf y_jk

So this is attention with eight times as many queries as keys. A program takes a block of queries of
one head, in all frames, and loops over the keys once (T. Dao et al., "FlashAttention",
https://arxiv.org/abs/2205.14135). Products of queries, keys and values are as exact as in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.binding.frames import N_FRAMES, load_coordinate, signed
from mlff_triton.kernels.binding.types import FRAMES, Tokens
from mlff_triton.kernels.common.attention import weigh
from mlff_triton.kernels.common.checks import check_device, check_pointers, check_shape
from mlff_triton.kernels.common.hardware import has_large_memory
from mlff_triton.kernels.numerics.product import product, product_terms, split, total
from mlff_triton.kernels.numerics.stored_rows import store_split

_LARGEST = tl.constexpr(14.0)  # log2 of the largest weight, for which halves are exact


class _Tile(NamedTuple):
    """Rows (pairs of a token and a frame) and keys per block, warps, and stages of the loop."""

    rows: int
    keys: int
    warps: int
    stages: int


LARGE = _Tile(rows=64, keys=64, warps=4, stages=2)
SMALL = _Tile(rows=64, keys=32, warps=4, stages=1)


@triton.jit
def _frame_attention_kernel(
    coordinates_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    row_ptr_ptr,
    directions_ptr,
    out_ptr,
    n_tokens,
    D: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Write the halves of out [2, n_tokens, 8, C]. Grid: (blocks of M rows, heads, B).

    Reads coordinates [3, n_tokens], queries [n_tokens, C], halves of keys and values
    [2, n_tokens, C], row_ptr [B + 1] and directions [4, 3, C].
    """
    complex_ = tl.program_id(2)
    first = tl.load(row_ptr_ptr + complex_).to(tl.int64)
    length = (tl.load(row_ptr_ptr + complex_ + 1) - first).to(tl.int32)
    begin, n_rows = tl.program_id(0) * M, length * N_FRAMES
    if begin >= n_rows:
        return
    row = tl.minimum(begin + tl.arange(0, M), n_rows - 1)
    token, frame = first + row // N_FRAMES, row % N_FRAMES
    column = tl.program_id(1) * D + tl.arange(0, D)
    directions_ptr += column  # rows 3, 6 and 9 begin the parts of queries, keys and values

    q = tl.load(queries_ptr + token[:, None] * C + column[None, :])
    for k in tl.static_range(3):
        y = load_coordinate(coordinates_ptr, token, frame, k, n_tokens)
        q += y[:, None] * tl.load(directions_ptr + (3 + k) * C)[None, :]
    q_parts = split(q, "shifted_halves")  # [M, D]
    slope_0 = signed(tl.sum(q * tl.load(directions_ptr + 6 * C)[None, :], 1), frame, 0)
    slope_1 = signed(tl.sum(q * tl.load(directions_ptr + 7 * C)[None, :], 1), frame, 1)
    slope_2 = signed(tl.sum(q * tl.load(directions_ptr + 8 * C)[None, :], 1), frame, 2)

    peak = tl.full((M,), float("-inf"), tl.float32)
    norm = tl.zeros((M,), tl.float32)
    mean_0, mean_1, mean_2 = norm, norm, norm
    acc, small_acc = tl.zeros((M, D), tl.float32), tl.zeros((M, D), tl.float32)
    for start in range(0, length, N):
        index = start + tl.arange(0, N)
        known = index < length
        key = first + index
        pointers = key[None, :] * C + column[:, None]
        k_high = tl.load(keys_ptr + pointers, known[None, :], other=0.0)  # [D, N]
        pointers = (key + n_tokens)[None, :] * C + column[:, None]
        k_low = tl.load(keys_ptr + pointers, known[None, :], other=0.0)
        y_0 = tl.load(coordinates_ptr + key, known, other=0.0)
        y_1 = tl.load(coordinates_ptr + n_tokens + key, known, other=0.0)
        y_2 = tl.load(coordinates_ptr + 2 * n_tokens + key, known, other=0.0)
        scores = product(q_parts, (k_high, k_low), "shifted_halves")
        scores += slope_0[:, None] * y_0[None, :]
        scores += slope_1[:, None] * y_1[None, :]
        scores += slope_2[:, None] * y_2[None, :]
        scores = tl.where(known[None, :], scores, float("-inf"))

        weights, rescale, peak = weigh(scores, peak, LARGEST=_LARGEST)
        norm = norm * rescale + tl.sum(weights, 1)
        mean_0 = mean_0 * rescale + tl.sum(weights * y_0[None, :], 1)
        mean_1 = mean_1 * rescale + tl.sum(weights * y_1[None, :], 1)
        mean_2 = mean_2 * rescale + tl.sum(weights * y_2[None, :], 1)
        pointers = key[:, None] * C + column[None, :]
        v_high = tl.load(values_ptr + pointers, known[:, None], other=0.0)  # [N, D]
        pointers = (key + n_tokens)[:, None] * C + column[None, :]
        v_low = tl.load(values_ptr + pointers, known[:, None], other=0.0)
        parts = split(weights, "shifted_halves")
        small_acc = small_acc * rescale[:, None]
        sums, small_acc = product_terms(parts, (v_high, v_low), small_acc)
        acc = tl.fma(acc, rescale[:, None], sums)  # rounded to nearest: tensor cores truncate

    acc = total((acc, small_acc))
    acc += signed(mean_0, frame, 0)[:, None] * tl.load(directions_ptr + 9 * C)[None, :]
    acc += signed(mean_1, frame, 1)[:, None] * tl.load(directions_ptr + 10 * C)[None, :]
    acc += signed(mean_2, frame, 2)[:, None] * tl.load(directions_ptr + 11 * C)[None, :]
    out = first * N_FRAMES + begin + tl.arange(0, M)
    last = (first + length) * N_FRAMES
    store_split(acc / norm[:, None], out_ptr, out, column, n_tokens * N_FRAMES, last, C)


def frame_attention(
    tokens: Tokens, row_ptr: Tensor, max_length: int, directions: Tensor, n_heads: int
) -> Tensor:
    """Compute the attention of tokens in all frames within each complex, without gradients.

    Parameters
    ----------
    tokens : Tokens
        Tokens, with halves of keys and values.
    row_ptr : int32 [B + 1]
        Complex ``b`` holds the rows ``row_ptr[b]:row_ptr[b + 1]``.
    max_length : int
        Length of the longest complex, or more. Passing it spares the host a wait for the GPU.
    directions : float32 [4, 3, C]
        Parts of the maps that act on coordinates: the part of embedded atoms, then A, K and V.
    n_heads : int
        Number of heads H; C / H is a power of two from 16 to 128.

    Returns
    -------
    float16 [2, T, 8, C]
        Attention outputs, as halves; rows that are not in use are undefined.

    Raises
    ------
    InputError
        If the shapes do not fit together, or the tensors are on different devices.
    BackendError
        If the tensors are not on a GPU.
    """
    n_tokens, channels = tokens.queries.shape
    check_device(*tokens, row_ptr, directions)
    check_pointers(row_ptr)
    check_shape("tokens.keys", tokens.keys, (2, n_tokens, channels))
    check_shape("directions", directions, (4, 3, channels))
    out = tokens.keys.new_empty(2, n_tokens, FRAMES, channels)
    tile = LARGE if has_large_memory(out) else SMALL
    blocks = triton.cdiv(max_length * FRAMES, tile.rows)
    if n_tokens and blocks:
        with torch.cuda.device_of(out):
            _frame_attention_kernel[(blocks, n_heads, len(row_ptr) - 1)](
                tokens.coordinates,
                tokens.queries,
                tokens.keys,
                tokens.values,
                row_ptr,
                directions,
                out,
                n_tokens,
                D=channels // n_heads,
                C=channels,
                M=tile.rows,
                N=tile.keys,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
    return out
