"""Check of the mask of known residues."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.bio.value_check import ValueCheck


class KnownCheck(ValueCheck):
    """Check that each protein has more known residues than a residue has neighbors.

    Otherwise neighbors are arbitrary: all unknown residues are as far away as the farthest known
    one.

    Parameters
    ----------
    n_neighbors : int
        Largest number of neighbors.
    """

    def __init__(self, n_neighbors: int) -> None:
        super().__init__()
        self.n_neighbors = n_neighbors

    def concerns(self, tensor: Tensor) -> bool:
        """Return True for all masks with residues."""
        return tensor.numel() > 0

    def measure(self, tensor: Tensor) -> Tensor:
        """Return whether all values are 0 or 1, and whether there are enough known residues."""
        is_binary = ((tensor == 0) | (tensor == 1)).all()
        is_enough = (tensor.sum(1) > self.n_neighbors).all()
        return torch.stack([is_binary, is_enough | (tensor.shape[1] <= self.n_neighbors)]).long()

    def reason(self, *numbers: float) -> str | None:
        """Refuse other values, and too few known residues."""
        is_binary, is_enough = numbers
        if not is_binary:
            return "the mask has values other than 0 and 1"
        if is_enough:
            return None
        return f"a padded protein has no more known residues than {self.n_neighbors} neighbors"

    def __reduce__(self) -> tuple[type[KnownCheck], tuple[int]]:
        return KnownCheck, (self.n_neighbors,)
