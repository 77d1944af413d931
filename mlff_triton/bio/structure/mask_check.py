"""Check of masks, which may only have the values 0 and 1."""

from __future__ import annotations

from torch import Tensor

from mlff_triton.bio.value_check import ValueCheck


class MaskCheck(ValueCheck):
    """Check that a mask has no values other than 0 and 1, which kernels would take for 1."""

    def measure(self, tensor: Tensor) -> Tensor:
        """Return 1 if there are other values, else 0."""
        return ((tensor != 0) & (tensor != 1)).any().float()[None]

    def reason(self, *values: float) -> str | None:
        """Refuse masks with other values."""
        return "a mask has values other than 0 and 1" if values[0] else None

    def __reduce__(self) -> tuple[type[MaskCheck], tuple[()]]:
        return MaskCheck, ()
