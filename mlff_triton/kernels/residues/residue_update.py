"""Update of residues by messages from their neighbors.

    m_i = sum_j w_j (gelu(gelu(receiver_i + e_ij W1 + sender_j) W2 + b2) W3 + b3)
    x_i <- norm(x_i + m_i)
    x_i <- mask_i norm'(x_i + gelu(x_i U + u) D + d)

The third map of messages is linear, so it is applied to their sums. One kernel computes these sums,
one applies the network for parts of its hidden values, and one adds the results of the parts. Even
a few residues then keep many multiprocessors busy.

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
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.numerics.product import add_linear, bias_sum, end_sum, scheme_of
from mlff_triton.kernels.residues.edge_blocks import has_room, layer_norm
from mlff_triton.kernels.residues.message_sums import message_sums
from mlff_triton.kernels.residues.types import EdgeNetwork, ResidueNetwork


@triton.jit
def _hidden_sums_kernel(
    x_ptr,
    sums_ptr,
    weights_ptr,
    third_ptr,
    third_bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    up_ptr,
    up_bias_ptr,
    down_ptr,
    normed_ptr,
    changes_ptr,
    n_residues,
    n_parts,
    n_neighbors,
    n_hidden,
    eps: tl.float64,
    EARLY_LAUNCH: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    M: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write normalized rows [n_residues, C], and parts of changes [parts, n_residues, C].

    Grid: (blocks of M residues, parts of the hidden values). Reads residues x [n_residues, C], sums
    of messages [n_residues, n_parts, C], the weights of messages [n_residues, n_neighbors], and
    weights of networks.
    """
    wait_for_previous(EARLY_LAUNCH)
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
    message = end_sum(add_linear(total, third_ptr, acc, C, C, 0, 0, PRECISION), PRECISION)
    offsets = residue[:, None] * C + columns[None, :]
    x = tl.load(x_ptr + offsets, live[:, None], other=0.0).to(ACCUMULATE)  # [M, C]
    x = layer_norm(x + message, norm_weight_ptr, norm_bias_ptr, eps)
    tl.store(normed_ptr + offsets, x, live[:, None] & (tl.program_id(1) == 0))

    change = tl.zeros((M, C), ACCUMULATE)
    size = n_hidden // tl.num_programs(1)
    begin = tl.program_id(1) * size
    for start in tl.range(begin, begin + size, H, num_stages=STAGES):
        hidden = bias_sum(up_bias_ptr, start, ACCUMULATE, PRECISION, M, H)
        hidden = add_linear(x, up_ptr, hidden, C, n_hidden, 0, start, PRECISION)
        hidden = activate(end_sum(hidden, PRECISION), "gelu")
        # A separate sum, as tensor cores truncate the last bits of a long one.
        change += add_linear(hidden, down_ptr, tl.zeros_like(x), n_hidden, C, start, 0, PRECISION)
    changes_ptr += tl.program_id(1).to(tl.int64) * n_residues * C
    tl.store(changes_ptr + offsets, end_sum(change, PRECISION), live[:, None])


@triton.jit
def _sum_changes_kernel(
    normed_ptr,
    changes_ptr,
    mask_ptr,
    down_bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    updated_ptr,
    n_residues,
    n_parts,
    eps: tl.float64,
    EARLY_LAUNCH: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    """Write the updated residues [n_residues, C]. Grid: (blocks of M residues,).

    Reads normalized rows [n_residues, C], changes [n_parts, n_residues, C], the mask of residues,
    and the weights of a normalization.
    """
    wait_for_previous(EARLY_LAUNCH)
    residue, columns = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M), tl.arange(0, C)
    live = residue < n_residues
    offsets = residue[:, None] * C + columns[None, :]
    x = tl.load(normed_ptr + offsets, live[:, None], other=0.0).to(ACCUMULATE)
    x += tl.load(down_bias_ptr + columns)[None, :]
    for part in range(n_parts):
        pointers = changes_ptr + tl.cast(part, tl.int64) * n_residues * C + offsets
        x += tl.load(pointers, live[:, None], other=0.0)
    x = layer_norm(x, norm_weight_ptr, norm_bias_ptr, eps)
    x *= tl.load(mask_ptr + residue, live, other=0.0)[:, None]
    tl.store(updated_ptr + offsets, x, live[:, None])


FEW, MANY = 16, 32
"""Residues per block if there are few residues, and if there are many."""


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
        Part of the messages' first map for each residue as a sender.
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
    exact = torch.promote_types(x.dtype, torch.float32)
    normed, updated = torch.empty_like(x, dtype=exact), torch.empty_like(x)
    n_residues, n_neighbors, channels = edges.shape
    n_hidden, width = len(network.up.bias), min(channels, 64)
    sums = message_sums(edges, receivers, senders, sources, message, weights)
    processors = hardware.multiprocessors(x.device)
    block = MANY if n_residues > FEW * processors and has_room(x) else FEW
    blocks = triton.cdiv(n_residues, block)
    parts = n_hidden // width  # at most; halved below
    while parts % 2 == 0 and parts * blocks > 2 * processors:
        parts //= 2
    changes = normed.new_empty(parts, n_residues, channels)
    with torch.cuda.device_of(x):
        _hidden_sums_kernel[(blocks, parts)](
            x,
            sums,
            weights,
            *message.third,
            *network.norm[:2],
            *network.up,
            network.down.weight,
            normed,
            changes,
            n_residues,
            sums.shape[1],
            n_neighbors,
            n_hidden,
            network.norm[2],
            PRECISION=scheme_of(message.first, x),
            ACCUMULATE=accumulator(x),
            C=channels,
            K=triton.next_power_of_2(n_neighbors),
            H=width,
            M=block,
            STAGES=2 if has_room(x) and x.dtype is torch.float32 else 1,
            num_warps=4,
            num_stages=1,
            **early_launch(x),
        )
        _sum_changes_kernel[(triton.cdiv(n_residues, 4),)](
            normed,
            changes,
            mask,
            network.down.bias,
            *network.last_norm[:2],
            updated,
            n_residues,
            parts,
            network.last_norm[2],
            ACCUMULATE=accumulator(x),
            C=channels,
            M=4,
            num_warps=1,
            **early_launch(x),
        )
    return updated
