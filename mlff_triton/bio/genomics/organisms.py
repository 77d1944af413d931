"""Check of the organisms of sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.bio.value_check import ValueCheck


class OrganismCheck(ValueCheck):
    """Check that all organisms are known.

    Parameters
    ----------
    n_organisms : int
        Number of known organisms.
    """

    def __init__(self, n_organisms: int) -> None:
        super().__init__()
        self._n_organisms = n_organisms

    def measure(self, tensor: Tensor) -> Tensor:
        """Return the least and the greatest organism."""
        return torch.stack(tensor.aminmax())

    def reason(self, *values: float) -> str | None:
        """Refuse organisms that are negative or too large."""
        if min(values) >= 0 and max(values) < self._n_organisms:
            return None
        return f"organism_index is not from 0 to {self._n_organisms - 1}"

    def __reduce__(self) -> tuple[type[OrganismCheck], tuple[int]]:
        return OrganismCheck, (self._n_organisms,)
