"""Checks of the values of attention masks."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing


class MaskCheck:
    """Check of attention masks, which is queued before the forward that it is about.

    So the host waits for the check while the GPU computes the forward already, whose result is
    dropped if the mask is refused. Each tensor is checked once, and again after a change. Masks
    made in inference mode do not count their changes, so these are checked in every call. Boolean
    masks need no check, unless the first tokens matter. While a CUDA graph is captured, values are
    unknown and masks pass.

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
        self._queued: tuple[Tensor, Callable[[], list[float]]] | None = None

    def queue(self, mask: Tensor) -> None:
        """Queue the check of a mask [B, L], if it needs one."""
        is_needed = self._is_new(mask) and not is_capturing(mask)
        self._queued = (mask, _queued(mask)) if is_needed else None

    def refusal(self, mask: Tensor) -> str | None:
        """Return the reason why a mask [B, L] is not supported, or None if it is."""
        if not self._is_new(mask):
            return self._found if mask is self._last() else None
        if is_capturing(mask):
            return None
        queued, self._queued = self._queued, None
        read = queued[1] if queued is not None and queued[0] is mask else _queued(mask)
        self._found = self._reason(*read())
        if not mask.is_inference():
            self._last, self._version = weakref.ref(mask), mask._version
        return self._found

    def _is_new(self, mask: Tensor) -> bool:
        if not mask.numel() or (mask.dtype == torch.bool and not self._reads_first_token):
            return False
        return mask.is_inference() or mask is not self._last() or mask._version != self._version

    def _reason(self, least: float, most: float, first: float) -> str | None:
        if least < 0 or most > 1:
            return "attention_mask has values other than 0 and 1"
        if self._reads_first_token and first == 0:
            return "a sequence begins with padding, but the model reads its first token"
        return None

    def __reduce__(self) -> tuple[type[MaskCheck], tuple[bool]]:
        return MaskCheck, (self._reads_first_token,)


def _queued(mask: Tensor) -> Callable[[], list[float]]:
    """Queue the download of the least and the largest value of a mask, and the least first one.

    The function returned waits for them. Floating-point values other than 0 and 1 become 2.
    """
    values = mask.to(torch.uint8) if mask.dtype == torch.bool else mask
    if values.is_floating_point():
        values = torch.where((values == 0) | (values == 1), values, 2)
    found = torch.stack([*values.aminmax(), values[:, 0].amin()])
    if not found.is_cuda:
        return found.tolist
    downloaded = torch.empty_like(found, device="cpu", pin_memory=True)
    downloaded.copy_(found, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def read() -> list[float]:
        done.synchronize()
        values: list[float] = downloaded.tolist()
        return values

    return read
