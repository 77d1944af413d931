"""The computation of ProteinMPNN, with the operators of a backend.

Residues of all proteins of a batch are rows of one table. No table of all pairs of residues is
needed: the rank of each residue gives the order of decoding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.models.protein_mpnn.weights import MPNNWeights
from mlff_triton.kernels.residues.protocol import ResidueOperators


class Backbones(NamedTuple):
    """Backbones of B proteins of L residues or fewer.

    Attributes
    ----------
    atoms : float32 [B, L, 4, 3]
        Positions of N, CA, C and O in Å.
    mask : float32 [B, L]
        1 for residues with known positions.
    numbers : int64 [B, L]
        Number of each residue in the sequence.
    chains : int64 [B, L]
        Chain of each residue.
    """

    atoms: Tensor
    mask: Tensor
    numbers: Tensor
    chains: Tensor


class Encoded(NamedTuple):
    """Encoded backbones, R = B L.

    Attributes
    ----------
    residues : [R, C]
        Residues.
    edges : [R, K, C]
        Edges.
    sources : int32 [R, K]
        Row of each edge's sender.
    mask : [R]
        1 for residues with known positions.
    """

    residues: Tensor
    edges: Tensor
    sources: Tensor
    mask: Tensor


def encode(ops: ResidueOperators, w: MPNNWeights, given: Backbones, n_neighbors: int) -> Encoded:
    """Encode backbones, with at most ``n_neighbors`` neighbors per residue."""
    count = min(n_neighbors, given.mask.shape[1])
    sources, distances = ops.nearest_residues(given.atoms[:, :, 1], given.mask, count)
    atoms, numbers, chains = (
        t.flatten(0, 1).contiguous() for t in (given.atoms, given.numbers, given.chains)
    )
    edges = ops.residue_edges(atoms, sources, distances, numbers, chains, w.backbone)
    mask = given.mask.flatten().to(edges.dtype).contiguous()
    known = mask[sources]
    x = edges.new_zeros(len(mask), edges.shape[-1])
    receivers, senders = ops.project(x, w.projections[0])
    for layer, projections in zip(w.encoder, w.projections[1:], strict=True):
        x = ops.residue_update(
            x, edges, receivers, senders, sources, mask, layer.message, layer.residues, known
        )
        parts = ops.project(x, projections)
        edges = ops.edge_update(edges, parts[0], parts[1], sources, layer.update, layer.norm)
        receivers, senders = parts[-2:]
    return Encoded(x, edges, sources, mask)


def ranks_of(order: Tensor) -> Tensor:
    """Return the rank of each residue in an order of decoding; both are int64 [B, L]."""
    ranks = torch.empty_like(order)
    positions = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return ranks.scatter_(1, order, positions)


def score(
    ops: ResidueOperators, w: MPNNWeights, encoded: Encoded, sequence: Tensor, order: Tensor
) -> Tensor:
    """Compute the log-probabilities [B, L, V] of all amino acids, given those decoded before.

    Takes the sequence and the order of decoding, int64 [B, L].
    """
    x, edges, sources, mask = encoded
    n_residues = len(x)
    rank = ranks_of(order).flatten()
    is_decoded = rank[:, None] > rank[sources]
    # The first half of the senders is as encoded, the second as decoded.
    sources = torch.add(sources, is_decoded, alpha=n_residues)
    letters = w.sequences[sequence.flatten()].unbind(1)
    of_encoded = ops.project(x, w.encoded)
    for layer, as_encoded, letter in zip(w.decoder, of_encoded, letters, strict=True):
        receivers, as_decoded = ops.project(x, layer.projections)
        senders = torch.cat([as_encoded, as_decoded + letter])
        x = ops.residue_update(
            x,
            edges,
            receivers,
            senders,
            sources,
            mask,
            layer.message,
            layer.residues,
        )
    logits = torch.addmm(w.out.bias, x, w.out.weight).float()
    return logits.log_softmax(1).view(*order.shape, -1)
