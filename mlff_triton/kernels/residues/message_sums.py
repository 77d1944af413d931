"""Sums of messages from the neighbors of each residue, up to the last map, which is linear.

    s_i = sum_j w_j gelu(gelu(receiver_i + e_ij W1 + sender_j) W2 + b2)

Messages are never stored. Blocks of edges do not depend on the boundaries of residues: a block
writes one sum per sixteen rows, and `mlff_triton.kernels.residues.residue_update` adds these sums.
Source: J. Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
https://doi.org/10.1126/science.add2187.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.numerics.product import scheme_of
from mlff_triton.kernels.residues.edge_blocks import block_of, edge_hidden
from mlff_triton.kernels.residues.types import EdgeNetwork

PART = 16
"""Rows per sum. Each residue has a multiple of them, and some rows may have no edge."""


@triton.jit
def _message_sums_kernel(
    edges_ptr,
    receivers_ptr,
    senders_ptr,
    sources_ptr,
    weights_ptr,
    first_ptr,
    second_ptr,
    second_bias_ptr,
    sums_ptr,
    n_residues,
    n_neighbors,
    EARLY_LAUNCH: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    PART: tl.constexpr,
    M: tl.constexpr,
):
    """Write the sums [n_residues * ROWS / PART, C]. Grid: (blocks of M rows,).

    Each residue has ROWS rows: one per edge, and the rest without an edge. Reads edges
    [n_residues, n_neighbors, C] with their sources and weights, the parts of receivers and senders
    [., C], and the weights of the first two maps.
    """
    wait_for_previous(EARLY_LAUNCH)
    columns = tl.arange(0, C)
    n_rows = n_residues * ROWS
    row = tl.program_id(0) * M + tl.arange(0, M)
    residue, slot = (row // ROWS).to(tl.int64), row % ROWS
    mask = (slot < n_neighbors) & (row < n_rows)
    edge = residue * n_neighbors + slot
    edges = tl.load(edges_ptr + edge[:, None] * C + columns[None, :], mask[:, None], other=0.0).to(
        ACCUMULATE
    )  # [M, C]
    sources = tl.load(sources_ptr + edge, mask, other=0).to(tl.int64)
    hidden = edge_hidden(
        edges,
        receivers_ptr,
        senders_ptr,
        residue,
        sources,
        mask,
        first_ptr,
        second_ptr,
        second_bias_ptr,
        PRECISION,
        C,
    )
    weight = mask.to(hidden.dtype)
    if weights_ptr is not None:
        weight = tl.load(weights_ptr + edge, mask, other=0.0).to(hidden.dtype)
    sums = tl.sum(tl.reshape(hidden * weight[:, None], (M // PART, PART, C)), 1)
    part = tl.program_id(0) * (M // PART) + tl.arange(0, M // PART)
    offsets = part.to(tl.int64)[:, None] * C + columns[None, :]
    tl.store(sums_ptr + offsets, sums, (part * PART < n_rows)[:, None])


def message_sums(
    edges: Tensor,
    receivers: Tensor,
    senders: Tensor,
    sources: Tensor,
    network: EdgeNetwork,
    weights: Tensor | None = None,
) -> Tensor:
    """Sum the messages to each residue, up to the last map, without gradients.

    Parameters
    ----------
    edges : [R, K, C]
        Edges from K residues to each of R residues; C is a power of two, 16 or more.
    receivers : [R, C]
        Part of the network's first map for each residue as a receiver, with the bias.
    senders : [S, C]
        Part of the network's first map for each residue as a sender.
    sources : int32 [R, K]
        Row of each edge's sender.
    network : EdgeNetwork
        Network of the messages, whose last map is not applied.
    weights : [R, K], optional
        Weight of each message; 1 by default.

    Returns
    -------
    [R, P, C]
        Sums over P parts of each residue's messages, which are not yet added.
    """
    n_residues, n_neighbors, channels = edges.shape
    parts = triton.cdiv(n_neighbors, PART)
    sums = edges.new_empty(n_residues, parts, channels)
    block = block_of(edges)
    with torch.cuda.device_of(edges):
        _message_sums_kernel[(triton.cdiv(n_residues * parts * PART, block.rows),)](
            edges,
            receivers,
            senders,
            sources,
            weights,
            network.first,
            *network.second,
            sums,
            n_residues,
            n_neighbors,
            PRECISION=scheme_of(network.first, edges),
            ACCUMULATE=accumulator(edges),
            C=channels,
            ROWS=parts * PART,
            PART=PART,
            M=block.rows,
            num_warps=block.warps,
            num_stages=1,
            **early_launch(edges),
        )
    return sums
