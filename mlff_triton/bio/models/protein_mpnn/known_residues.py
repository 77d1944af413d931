"""Check of the mask of known residues."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.bio.core.value_check import ValueCheck


class KnownCheck(ValueCheck):
    """Check that values are 0 or 1, and that each protein has enough known residues.

    All unknown residues are as far away as the farthest known one. So neighbors are arbitrary
    unless a protein has more known residues than a residue has neighbors, or all residues are
    neighbors of each other.

    Parameters
    ----------
    n_needed : int
        Smallest number of known residues.
    """

    def __init__(self, n_needed: int) -> None:
        super().__init__()
        self.n_needed = n_needed

    @staticmethod
    def needed(length: int, n_neighbors: int) -> int:
        """Return the number of residues that must be known among ``length``."""
        return n_neighbors + 1 if length > n_neighbors else 0

    def measure(self, tensor: Tensor) -> Tensor:
        """Return the sum of each protein, and then sums that are 0 if all values are 0 or 1."""
        x = tensor.float()
        others = torch.linalg.vector_norm(torch.addcmul(x, x, x, value=-1), 1, dim=1)
        return torch.cat([x.sum(1), others])

    def reason(self, *sums: float) -> str | None:
        """Refuse other values, and too few known residues."""
        n_known, others = sums[: len(sums) // 2], sums[len(sums) // 2 :]
        if any(others):
            return "the mask has values other than 0 and 1"
        if min(n_known) >= self.n_needed:
            return None
        return f"a padded protein has fewer than {self.n_needed} known residues"

    def __reduce__(self) -> tuple[type[KnownCheck], tuple[int]]:
        return KnownCheck, (self.n_needed,)
