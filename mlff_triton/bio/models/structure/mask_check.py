"""Check of masks, which may only have the values 0 and 1."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.bio.core.value_check import ValueCheck


def has_other_values(mask: Tensor) -> Tensor:
    """Return True, in a tensor, if a mask has values x other than 0 and 1: x - x^2 is not zero."""
    x = mask if mask.is_floating_point() else mask.float()
    return torch.addcmul(x, x, x, value=-1).any()


class MaskCheck(ValueCheck):
    """Check that a mask has no values other than 0 and 1, which kernels would take for 1."""

    def measure(self, tensor: Tensor) -> Tensor:
        """Return True if there are other values."""
        return has_other_values(tensor)[None]

    def reason(self, *values: float) -> str | None:
        """Refuse masks with other values."""
        return "a mask has values other than 0 and 1" if values[0] else None

    def __reduce__(self) -> tuple[type[MaskCheck], tuple[()]]:
        return type(self), ()


class WholeMaskCheck(MaskCheck):
    """Check also that each token of a mask of pairs [..., N, N] has a pair in either direction.

    If all pairs of a token are padding, kernels attend to nothing, but packages to all pairs.
    """

    def measure(self, tensor: Tensor) -> Tensor:
        """Return True if there are other values, and True if a token has no pairs."""
        kept = tensor != 0
        have_pairs = kept.any(-1).all() & kept.any(-2).all()
        return torch.stack([has_other_values(tensor), ~have_pairs])

    def reason(self, *values: float) -> str | None:
        """Refuse masks with other values, and those with tokens that have no pairs."""
        if values[1]:
            return "all pairs of a token are padding, and other tokens depend on this token"
        return super().reason(*values)
