"""Check of masks, which may only have the values 0 and 1."""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.bio.value_check import ValueCheck


class MaskCheck(ValueCheck):
    """Check that a mask has no values other than 0 and 1, which kernels would take for 1."""

    def measure(self, tensor: Tensor) -> Tensor:
        """Return True if there are other values, for which x - x^2 is not zero."""
        x = tensor if tensor.is_floating_point() else tensor.float()
        return torch.addcmul(x, x, x, value=-1).any()[None]

    def reason(self, *values: float) -> str | None:
        """Refuse masks with other values."""
        return "a mask has values other than 0 and 1" if values[0] else None

    def __reduce__(self) -> tuple[type[MaskCheck], tuple[()]]:
        return MaskCheck, ()
