"""The part of a Transformer layer after attention, in all eight frames, and its mean over them.

    x_f = norm(x + sum_k s_kf y_k X_k + attended_f O + o)
    h_f = relu(x_f U + u)
    out = mean_f(norm'(x_f + h_f D + d))

Each line is one kernel: a product and the operations that follow it. Results passed between kernels
are halves, which take as much memory as float32 values and need no conversion before they are
multiplied. A program holds whole rows, and each token in all of its frames, so it can normalize and
average.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.binding.frames import N_FRAMES, load_coordinate
from mlff_triton.kernels.binding.types import FRAMES, FrameNetwork, Tokens
from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.hardware import has_large_memory
from mlff_triton.kernels.numerics.stored_rows import load_stored, multiply_stored, store_split


@triton.jit
def _normalize(x, eps):
    """Normalize rows [M, C] to mean zero and variance one."""
    x -= (tl.sum(x, 1) / x.shape[1])[:, None]
    variance = tl.sum(x * x, 1) / x.shape[1]
    return x * (1 / tl.sqrt(variance + eps))[:, None]


@triton.jit
def _attended_rows_kernel(
    coordinates_ptr,
    embedded_ptr,
    attended_ptr,
    n_tokens_ptr,
    directions_ptr,
    weight_ptr,
    bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    out_ptr,
    n_rows,
    eps,
    C: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Write the halves of normalized rows out [2, n_rows, C]. Grid: (blocks of M rows,).

    Reads coordinates [3, T], embedded [T, C], the halves of attended [2, n_rows, C], the number of
    tokens in use, directions [4, 3, C], and the weights of a map and a normalization.
    """
    n_live = tl.load(n_tokens_ptr).to(tl.int64) * N_FRAMES
    begin = tl.program_id(0).to(tl.int64) * M
    if begin >= n_live:
        return
    row = begin + tl.arange(0, M)
    known, column = tl.minimum(row, n_live - 1), tl.arange(0, C)
    x = multiply_stored(attended_ptr, known, n_rows, weight_ptr, column, C, C, M, C, K)
    token = known // N_FRAMES
    x += tl.load(bias_ptr + column)[None, :]
    for k in tl.static_range(3):
        y = load_coordinate(coordinates_ptr, token, row % N_FRAMES, k, n_rows // N_FRAMES)
        x += y[:, None] * tl.load(directions_ptr + k * C + column)[None, :]
    x += tl.load(embedded_ptr + token[:, None] * C + column[None, :])
    x = _normalize(x, eps)
    x = x * tl.load(norm_weight_ptr + column)[None, :] + tl.load(norm_bias_ptr + column)[None, :]
    store_split(x, out_ptr, row, column, n_rows, n_live, C)


@triton.jit
def _hidden_rows_kernel(
    x_ptr,
    n_tokens_ptr,
    weight_ptr,
    bias_ptr,
    hidden_ptr,
    n_rows,
    C: tl.constexpr,
    HIDDEN: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write the halves of hidden [2, n_rows, HIDDEN]. Grid: (blocks of M rows, of N columns).

    Reads the halves of x [2, n_rows, C], the number of tokens in use, and a map.
    """
    n_live = tl.load(n_tokens_ptr).to(tl.int64) * N_FRAMES
    begin = tl.program_id(0).to(tl.int64) * M
    if begin >= n_live:
        return
    row = begin + tl.arange(0, M)
    known, column = tl.minimum(row, n_live - 1), tl.program_id(1) * N + tl.arange(0, N)
    hidden = multiply_stored(x_ptr, known, n_rows, weight_ptr, column, C, HIDDEN, M, N, K)
    hidden = activate(hidden + tl.load(bias_ptr + column)[None, :], "relu")
    store_split(hidden, hidden_ptr, row, column, n_rows, n_live, HIDDEN)


@triton.jit
def _mean_rows_kernel(
    x_ptr,
    hidden_ptr,
    n_tokens_ptr,
    weight_ptr,
    bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    mean_ptr,
    n_rows,
    eps,
    C: tl.constexpr,
    HIDDEN: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Write the halves of the mean over frames [2, T, C]. Grid: (blocks of M rows,).

    Reads the halves of x [2, n_rows, C] and of hidden [2, n_rows, HIDDEN], the number of tokens in
    use, and the weights of a map and a normalization.
    """
    n_live = tl.load(n_tokens_ptr).to(tl.int64) * N_FRAMES
    begin = tl.program_id(0).to(tl.int64) * M
    if begin >= n_live:
        return
    known, column = tl.minimum(begin + tl.arange(0, M), n_live - 1), tl.arange(0, C)
    x = multiply_stored(hidden_ptr, known, n_rows, weight_ptr, column, HIDDEN, C, M, C, K)
    x += tl.load(bias_ptr + column)[None, :]
    x = _normalize(x + load_stored(x_ptr, known, column, n_rows, C), eps)
    mean = tl.sum(tl.reshape(x, (M // N_FRAMES, N_FRAMES, C)), 1) / N_FRAMES
    mean = mean * tl.load(norm_weight_ptr + column)[None, :]
    mean += tl.load(norm_bias_ptr + column)[None, :]
    token = begin // N_FRAMES + tl.arange(0, M // N_FRAMES)
    store_split(mean, mean_ptr, token, column, n_rows // N_FRAMES, n_live // N_FRAMES, C)


class _Tile(NamedTuple):
    """Rows, largest numbers of columns and of inner indices, warps and stages of a product."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int

    def blocks(self, n_rows: int) -> int:
        """Return the number of blocks of rows."""
        return int(triton.cdiv(n_rows, self.rows))

    def options(self, n_inner: int) -> dict[str, int]:
        """Return constants and options of a launch that sums over inner indices."""
        sizes = {"M": self.rows, "K": _divisor(n_inner, self.inner)}
        return sizes | {"num_warps": self.warps, "num_stages": self.stages}


ATTENDED = _Tile(rows=64, columns=256, inner=64, warps=8, stages=3)
HIDDEN = _Tile(rows=128, columns=256, inner=64, warps=8, stages=3)
MEAN = _Tile(rows=32, columns=256, inner=32, warps=4, stages=3)
SMALL = _Tile(rows=32, columns=256, inner=32, warps=8, stages=1)
"""Blocks of the three kernels on an H200, and of all of them on GPUs with less shared memory."""


def _divisor(n: int, most: int) -> int:
    """Return the largest power of two, up to ``most``, that divides ``n``."""
    return min(n & -n, most)


def frame_network(
    tokens: Tokens, attended: Tensor, n_tokens: Tensor, directions: Tensor, network: FrameNetwork
) -> Tensor:
    """Compute the part of a layer after attention, and its mean over frames, without gradients.

    Parameters
    ----------
    tokens : Tokens
        Tokens; their embedded atoms and coordinates are read.
    attended : float16 [2, T, 8, C]
        Output of `frame_attention`, as halves; C is a power of two, 16 to 256.
    n_tokens : int32 [1]
        Number of tokens in use.
    directions : float32 [4, 3, C]
        Parts of the maps that act on coordinates; the first one, X, is that of embedded atoms.
    network : FrameNetwork
        Weights, as halves. The hidden size is a multiple of 16.

    Returns
    -------
    float16 [2, T, C]
        Mean over frames, as halves; rows that are not in use are undefined.

    Raises
    ------
    InputError
        If the shapes do not fit together, or the tensors are on different devices.
    BackendError
        If the tensors are not on a GPU.
    """
    all_tokens, channels = tokens.embedded.shape
    n_hidden, n_rows = len(network.up.bias), all_tokens * FRAMES
    check_device(*tokens, attended, n_tokens, directions, network.out.weight)
    check_shape("attended", attended, (2, all_tokens, FRAMES, channels))
    check_shape("network.up.weight", network.up.weight, (2, channels, n_hidden))
    mean = attended.new_empty(2, all_tokens, channels)
    if not all_tokens:
        return mean
    tiles = (ATTENDED, HIDDEN, MEAN) if has_large_memory(mean) else (SMALL, SMALL, SMALL)
    attended_tile, hidden_tile, mean_tile = tiles
    columns = _divisor(n_hidden, hidden_tile.columns)
    x, hidden = torch.empty_like(attended), attended.new_empty(2, n_rows, n_hidden)
    with torch.cuda.device_of(mean):
        _attended_rows_kernel[(attended_tile.blocks(n_rows),)](
            tokens.coordinates,
            tokens.embedded,
            attended,
            n_tokens,
            directions,
            *network.out,
            *network.norm[:2],
            x,
            n_rows,
            network.norm[2],
            C=channels,
            **attended_tile.options(channels),
        )
        _hidden_rows_kernel[(hidden_tile.blocks(n_rows), n_hidden // columns)](
            x,
            n_tokens,
            *network.up,
            hidden,
            n_rows,
            C=channels,
            HIDDEN=n_hidden,
            N=columns,
            **hidden_tile.options(channels),
        )
        _mean_rows_kernel[(mean_tile.blocks(n_rows),)](
            x,
            hidden,
            n_tokens,
            *network.down,
            *network.last_norm[:2],
            mean,
            n_rows,
            network.last_norm[2],
            C=channels,
            HIDDEN=n_hidden,
            **mean_tile.options(n_hidden),
        )
    return mean
