"""Features of the edges between residues, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.ops.reference.layer_norm import layer_norm
from mlff_triton.kernels.residues.types import (
    FARTHEST,
    FARTHEST_OFFSET,
    N_RBF,
    NEAREST,
    BackboneWeights,
)

EPS = 1e-6  # Å^2, added to squared distances
WIDTH = (FARTHEST - NEAREST) / N_RBF  # Å


def with_virtual_beta(atoms: Tensor) -> Tensor:
    """Append a virtual CB to the atoms N, CA, C and O: [R, 4, 3] to [R, 5, 3]."""
    n, alpha, c, _ = atoms.unbind(1)
    first, second = alpha - n, c - alpha
    normal = torch.linalg.cross(first, second)
    beta = -0.58273431 * normal + 0.56802827 * first - 0.54067466 * second + alpha
    return torch.cat([atoms, beta[:, None]], 1)


def residue_edges(
    atoms: Tensor,
    sources: Tensor,
    distances: Tensor,
    numbers: Tensor,
    chains: Tensor,
    weights: BackboneWeights,
) -> Tensor:
    """Compute `mlff_triton.kernels.residues.residue_edges.residue_edges`."""
    sources, chains = sources.long(), chains.long()
    positions = with_virtual_beta(atoms)
    vectors = positions[:, None, :, None] - positions[sources][:, :, None]  # [R, K, 5, 5, 3]
    lengths = torch.sqrt((vectors**2).sum(-1) + EPS)
    lengths[..., 1, 1] = distances
    centers = torch.linspace(NEAREST, FARTHEST, N_RBF, dtype=atoms.dtype, device=atoms.device)
    basis = torch.exp(-(((lengths.flatten(2)[..., None] - centers) / WIDTH) ** 2))
    offset = (numbers[:, None] - numbers[sources]).long()
    offset = (offset + FARTHEST_OFFSET).clamp(0, 2 * FARTHEST_OFFSET)
    offset = offset.where(chains[:, None] == chains[sources], 2 * FARTHEST_OFFSET + 1)
    basis = basis.flatten(2).to(weights.distances.dtype)
    edges = basis @ weights.distances[:25].flatten(0, 1) + weights.offsets[offset]
    return layer_norm(edges, *weights.norm) @ weights.out.weight + weights.out.bias
