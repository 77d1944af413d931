"""Check of the mask of known residues."""

from __future__ import annotations

from torch import Tensor

from mlff_triton.bio.value_check import ValueCheck


class KnownCheck(ValueCheck):
    """Check that each protein has as many known residues as a residue has neighbors.

    Otherwise arbitrary ones among the unknown residues are neighbors.

    Parameters
    ----------
    n_neighbors : int
        Largest number of neighbors.
    """

    def __init__(self, n_neighbors: int) -> None:
        super().__init__()
        self._n_neighbors = n_neighbors

    def concerns(self, tensor: Tensor) -> bool:
        """Return True for masks of more residues than there are neighbors."""
        return tensor.numel() > 0 and tensor.shape[1] > self._n_neighbors

    def measure(self, tensor: Tensor) -> Tensor:
        """Return the least number of known residues of a protein."""
        return tensor.sum(1).amin()[None]

    def reason(self, *numbers: float) -> str | None:
        """Refuse too few."""
        if numbers[0] >= self._n_neighbors:
            return None
        return f"a protein has fewer than {self._n_neighbors} known residues, but is padded to more"

    def __reduce__(self) -> tuple[type[KnownCheck], tuple[int]]:
        return KnownCheck, (self._n_neighbors,)
