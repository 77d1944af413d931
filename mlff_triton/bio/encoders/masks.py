"""Checks of the values of attention masks."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing


class MaskCheck:
    """Check of attention masks, made once per tensor because it waits for the GPU.

    Masks made in inference mode do not count their changes, so these are checked in every call.
    Boolean masks need no check, unless the first tokens matter. While a CUDA graph is captured,
    values are unknown and masks pass.

    Parameters
    ----------
    reads_first_token : bool
        If True, the model reads the first token of every sequence, which must not be padding.
    """

    def __init__(self, reads_first_token: bool) -> None:
        self._reads_first_token = reads_first_token
        self._last: Callable[[], Tensor | None] = lambda: None
        self._version = 0
        self._found: str | None = None

    def is_pending(self, mask: Tensor) -> bool:
        """Return True if `refusal` would wait for the GPU."""
        if mask.dtype == torch.bool and not self._reads_first_token:
            return False
        return mask.is_inference() or mask is not self._last() or mask._version != self._version

    def refusal(self, mask: Tensor) -> str | None:
        """Return the reason why a mask [B, L] is not supported, or None if it is."""
        if not self.is_pending(mask):
            return self._found if mask is self._last() else None
        if is_capturing(mask):
            return None
        self._found = self._examine(mask)
        if not mask.is_inference():
            self._last, self._version = weakref.ref(mask), mask._version
        return self._found

    def _examine(self, mask: Tensor) -> str | None:
        if mask.dtype != torch.bool and not bool(((mask == 0) | (mask == 1)).all()):
            return "attention_mask has values other than 0 and 1"
        if self._reads_first_token and not bool(mask[:, :1].all()):
            return "a sequence begins with padding, but the model reads its first token"
        return None

    def __reduce__(self) -> tuple[type[MaskCheck], tuple[bool]]:
        return MaskCheck, (self._reads_first_token,)
