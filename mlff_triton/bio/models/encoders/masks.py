"""Checks of the values of attention masks, and of all inputs of an encoder."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mlff_triton.bio.core.value_check import IndexCheck, ValueCheck
from mlff_triton.errors import InputError


def refused_values(checks: Iterable[tuple[ValueCheck, Tensor]]) -> str | None:
    """Return the reason why the values of a tensor are not supported, or None.

    Raises
    ------
    InputError
        If indices on a GPU are outside of their table. The original ``forward`` would end all use
        of the GPU in this process.
    """
    for check, tensor in checks:
        reason = check.refusal(tensor)
        if reason is not None and tensor.is_cuda and isinstance(check, IndexCheck):
            raise InputError(f"{reason}: use the tokenizer of the model")
        if reason is not None:
            return reason
    return None


class MaskCheck(ValueCheck):
    """Check of attention masks [B, L]. Boolean ones pass, unless the first tokens matter.

    Parameters
    ----------
    reads_first_token : bool
        If True, the model reads the first token of every sequence, which must not be padding.
    """

    def __init__(self, reads_first_token: bool) -> None:
        super().__init__()
        self._reads_first_token = reads_first_token

    def concerns(self, tensor: Tensor) -> bool:
        """Return True if the values of a mask matter."""
        return tensor.numel() > 0 and (tensor.dtype != torch.bool or self._reads_first_token)

    def measure(self, tensor: Tensor) -> Tensor:
        """Return the least and the largest value of a mask, and the least first one.

        Floating-point values other than 0 and 1 become 2.
        """
        values = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
        if values.is_floating_point():
            values = torch.where((values == 0) | (values == 1), values, 2)
        return torch.stack([*values.aminmax(), values[:, 0].amin()])

    def reason(self, *values: float) -> str | None:
        """Return the reason why a mask is not supported, or None if it is."""
        least, most, first = values
        if least < 0 or most > 1:
            return "attention_mask has values other than 0 and 1"
        if self._reads_first_token and first == 0:
            return "a sequence begins with padding, but the model reads its first token"
        return None

    def __reduce__(self) -> tuple[type[MaskCheck], tuple[bool]]:
        return MaskCheck, (self._reads_first_token,)
