"""Pairs after attention along rows and an MLP, and the attention biases computed from them.

    p <- p + attended
    p <- p + W2 relu(W1 (p / rms(p)) + b1) + b2
    bias_n = W_n gelu(s_n p + t_n)      for one or several layers n

Source: Ž. Avsec et al., "Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.genomics.pair_attention_inputs import inverse_rms
from mlff_triton.kernels.genomics.types import PairBiases, PairMLP


class _Tile(NamedTuple):
    rows: int
    hidden: int  # columns at a time
    warps: int


_TILE = _Tile(64, 64, 4)


@triton.jit
def _pair_mlp_fwd_kernel(
    pair_ptr,
    attended_ptr,
    up_ptr,
    up_bias_ptr,
    down_ptr,
    down_bias_ptr,
    scale_ptr,
    shift_ptr,
    weight_ptr,
    out_ptr,
    biases_ptr,
    n_pairs,
    EPS: tl.constexpr,
    HIDDEN: tl.constexpr,
    LAYERS: tl.constexpr,
    HEADS: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    M: tl.constexpr,
):
    """Write pairs [n_pairs, C] and biases [LAYERS, n_pairs, HEADS].

    Reads pairs and attended [n_pairs, C], weights [C, HIDDEN] and [HIDDEN, C], scale and shift
    [LAYERS, C] and weight [LAYERS, C, HEADS]. Grid: (blocks of M pairs,).
    """
    pair = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    known = (pair < n_pairs)[:, None]
    column, hidden, head = tl.arange(0, C), tl.arange(0, K), tl.arange(0, H)
    half: tl.constexpr = up_ptr.dtype.element_ty
    offsets = pair[:, None] * C + column[None, :]
    x = tl.load(pair_ptr + offsets, known, other=0.0)  # [M, C]
    x += tl.load(attended_ptr + offsets, known, other=0.0)
    normalized = (x * inverse_rms(x, EPS)).to(half)
    x += tl.load(down_bias_ptr + column).to(tl.float32)[None, :]
    for first in range(0, HIDDEN, K):
        up = tl.load(up_ptr + column[:, None] * HIDDEN + first + hidden[None, :])  # [C, K]
        y = tl.dot(normalized, up) + tl.load(up_bias_ptr + first + hidden).to(tl.float32)[None, :]
        down = tl.load(down_ptr + (first + hidden)[:, None] * C + column[None, :])  # [K, C]
        x = tl.dot(activate(y, "relu").to(half), down, x)
    tl.store(out_ptr + offsets, x, known)
    for layer in tl.static_range(LAYERS):
        scale = tl.load(scale_ptr + layer * C + column)
        shift = tl.load(shift_ptr + layer * C + column)
        active = activate(x * scale[None, :] + shift[None, :], "gelu_half").to(half)
        weight = tl.load(
            weight_ptr + (layer * C + column)[:, None] * HEADS + head[None, :],
            (head < HEADS)[None, :],
            other=0.0,
        )  # [C, H]
        bias = tl.dot(active, weight)
        pointers = biases_ptr + (layer * n_pairs + pair)[:, None] * HEADS
        mask = known & (head < HEADS)[None, :]
        tl.store(pointers + head[None, :], bias.to(biases_ptr.dtype.element_ty), mask)


def pair_mlp(
    pair: Tensor, attended: Tensor, eps: float, mlp: PairMLP, biases: PairBiases
) -> tuple[Tensor, Tensor]:
    """Add attention and an MLP to pairs, and compute attention biases, without gradients.

    Parameters
    ----------
    pair : float32 [B, P, P, C]
        Pairs. C is a power of two, 16 or more.
    attended : [B, P, P, C]
        Result of attention along rows, float16 or bfloat16, contiguous.
    eps : float
        Added to the mean square.
    mlp : PairMLP
        Weights of the MLP, including those of its normalization. The hidden size is a multiple of
        64.
    biases : PairBiases
        Weights of the attention biases of L layers with H heads.

    Returns
    -------
    pair : float32 [B, P, P, C]
        New pairs.
    biases : [L, B, P, P, H]
        Attention biases, of the dtype of ``attended``.
    """
    channels, hidden = mlp.up.shape
    layers, _, heads = biases.weight.shape
    new = torch.empty_like(pair)
    out = attended.new_empty(layers, *pair.shape[:3], heads)
    n_pairs = pair[..., 0].numel()
    with torch.cuda.device_of(pair):
        _pair_mlp_fwd_kernel[(triton.cdiv(n_pairs, _TILE.rows),)](
            *(pair, attended, *mlp, *biases, new, out),
            n_pairs,
            EPS=eps,
            HIDDEN=hidden,
            LAYERS=layers,
            HEADS=heads,
            C=channels,
            H=block_side(heads),
            K=_TILE.hidden,
            M=_TILE.rows,
            num_warps=_TILE.warps,
            num_stages=1,
        )
    return new, out
