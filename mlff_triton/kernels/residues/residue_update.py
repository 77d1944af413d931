"""Update of residues by messages from their neighbors.

    m_i = sum_j w_j (gelu(gelu(receiver_i + e_ij W1 + sender_j) W2 + b2) W3 + b3)
    x_i <- norm(x_i + m_i)
    x_i <- mask_i norm'(x_i + gelu(x_i U + u) D + d)

The third map of messages is linear, so it is applied to their sums. One kernel computes these, and
one updates the residues.

Source: J. Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
https://doi.org/10.1126/science.add2187.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.residues.edge_blocks import (
    Blocks,
    bias_sum,
    end_sum,
    layer_norm,
    linear,
    precision_of,
)
from mlff_triton.kernels.residues.message_sums import message_sums
from mlff_triton.kernels.types.residue_network import EdgeNetwork, ResidueNetwork


@triton.jit
def _residue_update_kernel(
    x_ptr,
    sums_ptr,
    weights_ptr,
    mask_ptr,
    third_ptr,
    third_bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    up_ptr,
    up_bias_ptr,
    down_ptr,
    down_bias_ptr,
    last_weight_ptr,
    last_bias_ptr,
    updated_ptr,
    n_residues,
    n_parts,
    n_neighbors,
    n_hidden,
    eps: tl.float64,
    last_eps: tl.float64,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    M: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write the updated residues [n_residues, C]. Grid: (blocks of M residues,).

    Reads residues x [n_residues, C] and their mask, sums of messages [n_residues, n_parts, C], the
    weights of messages [n_residues, n_neighbors], and the weights of networks.
    """
    residue, columns = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M), tl.arange(0, C)
    live = residue < n_residues
    total = tl.zeros((M, C), ACCUMULATE)
    for part in range(n_parts):
        rows = (residue * n_parts + part)[:, None]
        total += tl.load(sums_ptr + rows * C + columns[None, :], live[:, None], other=0.0)
    count = tl.zeros((M,), ACCUMULATE) + n_neighbors
    if weights_ptr is not None:
        slot = tl.arange(0, K)
        weights = tl.load(
            weights_ptr + residue[:, None] * n_neighbors + slot[None, :],
            live[:, None] & (slot < n_neighbors)[None, :],
            other=0.0,
        )
        count = tl.sum(weights, 1).to(ACCUMULATE)

    acc = count[:, None] * bias_sum(third_bias_ptr, 0, ACCUMULATE, PRECISION, M, C)
    message = end_sum(linear(total, third_ptr, acc, C, C, 0, 0, PRECISION), PRECISION)
    offsets = residue[:, None] * C + columns[None, :]
    x = tl.load(x_ptr + offsets, live[:, None], other=0.0).to(ACCUMULATE)  # [M, C]
    x += message
    x = layer_norm(x, norm_weight_ptr, norm_bias_ptr, eps)
    acc = bias_sum(down_bias_ptr, 0, ACCUMULATE, PRECISION, M, C)
    for start in tl.range(0, n_hidden, H, num_stages=STAGES):
        hidden = bias_sum(up_bias_ptr, start, ACCUMULATE, PRECISION, M, H)
        hidden = linear(x, up_ptr, hidden, C, n_hidden, 0, start, PRECISION)
        hidden = activate(end_sum(hidden, PRECISION), "gelu")
        # A sum apart, as tensor cores cut off the last bits of a long one.
        acc += linear(hidden, down_ptr, tl.zeros_like(acc), n_hidden, C, start, 0, PRECISION)
    y = layer_norm(x + end_sum(acc, PRECISION), last_weight_ptr, last_bias_ptr, last_eps)
    y *= tl.load(mask_ptr + residue, live, other=0.0)[:, None]
    tl.store(updated_ptr + offsets, y, live[:, None])


def residue_update(
    x: Tensor,
    edges: Tensor,
    receivers: Tensor,
    senders: Tensor,
    sources: Tensor,
    mask: Tensor,
    message: EdgeNetwork,
    network: ResidueNetwork,
    weights: Tensor | None = None,
) -> Tensor:
    """Update residues by messages from their neighbors, without gradients.

    Parameters
    ----------
    x : [R, C]
        Residues; C is a power of two, 16 or more.
    edges : [R, K, C]
        Edges to each residue.
    receivers : [R, C]
        Part of the messages' first map for each residue as a receiver, with the bias.
    senders : [S, C]
        The same for each residue as a sender.
    sources : int32 [R, K]
        Row of each edge's sender.
    mask : [R]
        Factor of each result.
    message : EdgeNetwork
        Network of the messages.
    network : ResidueNetwork
        Network of the residues, whose hidden size is a multiple of C.
    weights : [R, K], optional
        Weight of each message; 1 by default.

    Returns
    -------
    [R, C]
        New residues.
    """
    updated = torch.empty_like(x)
    n_residues, n_neighbors, channels = edges.shape
    sums = message_sums(edges, receivers, senders, sources, message, weights)
    blocks = Blocks.of(n_residues, x)
    is_large = n_residues > 16 * hardware.multiprocessors(x.device)
    block = 64 if is_large and blocks.has_room else 16
    prefetches = blocks.has_room and x.dtype is torch.float32
    with torch.cuda.device_of(x):
        _residue_update_kernel[(triton.cdiv(n_residues, block),)](
            x,
            sums,
            weights,
            mask,
            *message.third,
            *network.norm[:2],
            *network.up,
            *network.down,
            *network.last_norm[:2],
            updated,
            n_residues,
            sums.shape[1],
            n_neighbors,
            len(network.up.bias),
            network.norm[2],
            network.last_norm[2],
            PRECISION=precision_of(message.first, x),
            ACCUMULATE=accumulator(x),
            C=channels,
            K=triton.next_power_of_2(n_neighbors),
            H=min(channels, 64),
            M=block,
            STAGES=3 if prefetches else 1,
            num_warps=4,
            num_stages=1,
        )
    return updated
