"""Update of the edges of a graph of residues.

    h = gelu(gelu(receiver_i + e_ij W1 + sender_j) W2 + b2) W3 + b3
    e_ij <- norm(e_ij + h)

One kernel computes the update, and stores no intermediate value.

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
from mlff_triton.kernels.numerics.product import add_linear, bias_sum, end_sum, scheme_of
from mlff_triton.kernels.residues.edge_blocks import block_of, edge_hidden, layer_norm
from mlff_triton.kernels.residues.types import EdgeNetwork
from mlff_triton.kernels.types.norm import Norm


@triton.jit
def _edge_update_kernel(
    edges_ptr,
    receivers_ptr,
    senders_ptr,
    sources_ptr,
    first_ptr,
    second_ptr,
    second_bias_ptr,
    third_ptr,
    third_bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    updated_ptr,
    n_edges,
    n_neighbors,
    eps: tl.float64,
    EARLY_LAUNCH: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    """Write the updated edges [n_edges, C]. Grid: (blocks of M edges,).

    Reads edges [n_edges, C], their sources [n_edges], the parts of receivers and senders [., C],
    and weights.
    """
    wait_for_previous(EARLY_LAUNCH)
    columns = tl.arange(0, C)
    edge = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    mask = edge < n_edges
    pointers = edges_ptr + edge[:, None] * C + columns[None, :]
    edges = tl.load(pointers, mask[:, None], other=0.0, eviction_policy="evict_last")
    sources = tl.load(sources_ptr + edge, mask, other=0).to(tl.int64)
    hidden = edge_hidden(
        edges.to(ACCUMULATE),
        receivers_ptr,
        senders_ptr,
        edge // n_neighbors,
        sources,
        mask,
        first_ptr,
        second_ptr,
        second_bias_ptr,
        PRECISION,
        C,
    )
    acc = bias_sum(third_bias_ptr, 0, ACCUMULATE, PRECISION, M, C)
    updated = end_sum(add_linear(hidden, third_ptr, acc, C, C, 0, 0, PRECISION), PRECISION)
    updated += tl.load(pointers, mask[:, None], other=0.0)  # loaded again to save registers
    updated = layer_norm(updated, norm_weight_ptr, norm_bias_ptr, eps)
    tl.store(updated_ptr + edge[:, None] * C + columns[None, :], updated, mask[:, None])


def edge_update(
    edges: Tensor,
    receivers: Tensor,
    senders: Tensor,
    sources: Tensor,
    network: EdgeNetwork,
    norm: Norm,
) -> Tensor:
    """Update the edges of a graph of residues, without gradients.

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
        Network of the edges.
    norm : Norm
        Normalization of the sum.

    Returns
    -------
    [R, K, C]
        New edges.
    """
    updated = torch.empty_like(edges)
    n_edges, n_neighbors, channels = sources.numel(), *edges.shape[1:]
    block = block_of(edges)
    with torch.cuda.device_of(edges):
        _edge_update_kernel[(triton.cdiv(n_edges, block.rows),)](
            edges,
            receivers,
            senders,
            sources,
            network.first,
            *network.second,
            *network.third,
            *norm[:2],
            updated,
            n_edges,
            n_neighbors,
            norm[2],
            PRECISION=scheme_of(network.first, edges),
            ACCUMULATE=accumulator(edges),
            C=channels,
            M=block.rows,
            num_warps=block.warps,
            num_stages=1,
            **early_launch(edges),
        )
    return updated
