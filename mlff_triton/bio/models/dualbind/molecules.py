"""Message passing between the bonds of ligands, all ligands at once.

    m_b = relu(F_b W)      m_b <- relu(F_b W + (sum_{c into source of b} m_c - m_reverse(b)) H)
    atom_i = relu(A_i U + (sum_{b into i} m_b) V + v)

Source: K. Yang et al., "Analyzing Learned Molecular Representations for Property Prediction",
https://arxiv.org/abs/1904.01561.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from mlff_triton.bio.models.dualbind.weights import MoleculeWeights


class Molecules(NamedTuple):
    """Atoms and bonds of ligands, as in chemprop 1; row 0 of each is a placeholder.

    Attributes
    ----------
    atoms : [A, G]
        Features of atoms.
    bonds : [E, F]
        Features of directed bonds and of the atoms where they begin.
    incoming : int64 [A, K]
        Bonds that end at each atom, filled up with zeros.
    source : int64 [E]
        Atom where each bond begins.
    reverse : int64 [E]
        The same bond in the opposite direction.
    scopes : sequence of (int, int)
        First atom and number of atoms of each ligand.
    """

    atoms: Tensor
    bonds: Tensor
    incoming: Tensor
    source: Tensor
    reverse: Tensor
    scopes: Sequence[tuple[int, int]]

    @property
    def n_atoms(self) -> int:
        """Number of atoms of the largest ligand."""
        return max((size for _, size in self.scopes), default=0)

    def to(self, like: Tensor) -> Molecules:
        """Move all tensors to a device without waiting, features in the dtype of ``like``."""
        atoms, bonds = (x.to(like, non_blocking=True) for x in (self.atoms, self.bonds))
        incoming, source, reverse = (
            x.to(like.device, non_blocking=True) for x in (self.incoming, self.source, self.reverse)
        )
        return Molecules(atoms, bonds, incoming, source, reverse, self.scopes)


def embed_atoms(molecules: Molecules, w: MoleculeWeights) -> Tensor:
    """Compute the atoms [B, N, C] of B ligands after message passing, zero for padding."""
    given = molecules.to(w.hidden)
    first = given.bonds @ w.bonds
    messages = first.relu()
    for _ in range(w.depth - 1):
        sums = embedding_bag(given.incoming, messages, mode="sum")
        sums = sums[given.source] - messages[given.reverse]
        messages = torch.addmm(first, sums, w.hidden).relu_()
    sums = embedding_bag(given.incoming, messages, mode="sum")
    atoms = torch.addmm(w.messages.bias, sums, w.messages.weight)
    return _padded(atoms.addmm_(given.atoms, w.atoms).relu_(), given)


def _padded(atoms: Tensor, given: Molecules) -> Tensor:
    """Return the atoms [A, C] of each ligand [B, N, C], zero for padding."""
    starts, sizes = torch.tensor(given.scopes, dtype=torch.int64, device="cpu").view(-1, 2).T
    index = torch.arange(given.n_atoms, device="cpu")
    rows = torch.where(index < sizes[:, None], starts[:, None] + index, len(atoms))
    known = torch.cat([atoms, atoms.new_zeros(1, atoms.shape[1])])
    return known[rows.to(atoms.device, non_blocking=True)]
