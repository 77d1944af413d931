"""The computation of DualBind, with the operators of a backend.

Atoms of all complexes are rows of one table, without padding. Nothing waits for the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.core.packing import find_rows
from mlff_triton.bio.models.dualbind.weights import DualBindWeights, Embedding
from mlff_triton.kernels.binding.protocol import BindingOperators
from mlff_triton.kernels.binding.types import PARTS, Layout

UNKNOWN_RADIUS = 1e-4
"""Distance from the origin in Å within which positions count as unknown and atoms are skipped."""

MAX_ATOMS = 2**16
"""Padded atoms that are computed at a time. Each takes about 32 KiB of the GPU's memory."""


class Complexes(NamedTuple):
    """B complexes of N ligand atoms and M residues or fewer, with S slots for the atoms of each.

    Attributes
    ----------
    ligand_positions : [B, N, S, 3]
        Positions of ligand atoms in Å.
    ligand_atoms : [B, N, C]
        Ligand atoms after message passing.
    ligand_kinds : int64 [B, N, S]
        Kinds of ligand atoms; 0 for empty slots.
    positions : [B, M, S, 3]
        Positions of the protein's atoms in Å.
    residues : [B, M, R]
        Types of residues.
    kinds : int64 [B, M, S]
        Kinds of the protein's atoms; 0 for empty slots.
    """

    ligand_positions: Tensor
    ligand_atoms: Tensor
    ligand_kinds: Tensor
    positions: Tensor
    residues: Tensor
    kinds: Tensor

    def chunks(self) -> list[Complexes]:
        """Divide the complexes into parts with at most about `MAX_ATOMS` padded atoms each."""
        n_atoms = self.ligand_kinds[:1].numel() + self.kinds[:1].numel()
        size = max(1, MAX_ATOMS // max(1, n_atoms))
        return [Complexes(*parts) for parts in zip(*(x.split(size) for x in self), strict=True)]


def energies(
    ops: BindingOperators, w: DualBindWeights, given: Complexes, threshold: float
) -> Tensor:
    """Compute the energies [B] of complexes from contacts closer than a threshold in Å."""
    parts = [_energies(ops, w, chunk, threshold) for chunk in given.chunks()]
    return torch.cat(parts)


def _energies(
    ops: BindingOperators, w: DualBindWeights, given: Complexes, threshold: float
) -> Tensor:
    positions = torch.cat([given.ligand_positions.flatten(1, 2), given.positions.flatten(1, 2)], 1)
    kinds = _kinds(given, positions, w.embedding.n_kinds)
    kept = kinds > 0
    n_ligand = given.ligand_kinds[0].numel()
    packed = find_rows(kept)
    n_each = kept[:, :n_ligand].sum(1, dtype=torch.int32)
    layout = Layout(packed.token, packed.row_ptr, n_each)
    groups, directions = _groups(given, w.embedding), w.embedding.directions
    centers, axes = ops.principal_axes(positions, kept)
    tokens = ops.complex_tokens(positions, kinds, layout, centers, axes, groups, w.embedding.kinds)
    length = kinds.shape[1]
    attended = ops.frame_attention(tokens, layout.row_ptr, length, directions, w.n_heads)
    x = ops.frame_network(tokens, attended, layout.row_ptr[-1:], directions, w.network)
    lengths = n_ligand, length - n_ligand
    return ops.contact_energy(x, tokens.positions, layout, lengths, threshold, w.readout)


def _kinds(given: Complexes, positions: Tensor, n_kinds: int) -> Tensor:
    """Return the kinds of all slots [B, L]: ligand atoms first, 0 if empty, 2 V if unknown."""
    own, kinds = given.ligand_kinds.flatten(1), given.kinds.flatten(1)
    unknown = 2 * n_kinds
    own = own.where(own < n_kinds, unknown)
    kinds = (kinds + n_kinds * (kinds > 0)).where(kinds < n_kinds, unknown)
    is_known: Tensor = positions.norm(dim=-1) > UNKNOWN_RADIUS
    return torch.cat([own, kinds], 1) * is_known


def _groups(given: Complexes, embedding: Embedding) -> Tensor:
    """Return the parts [B, N + M, 4, C] of ligand atoms and of residues."""
    ligand, residues = embedding.ligand, embedding.residues
    own = given.ligand_atoms @ ligand.weight + ligand.bias
    theirs = given.residues @ residues.weight + residues.bias
    groups: Tensor = torch.cat([own, theirs], 1).unflatten(2, (PARTS, -1))
    return groups
