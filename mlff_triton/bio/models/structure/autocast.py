"""Computation without autocast, and adapters that compute in its dtype where it is enabled."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from mlff_triton.bio.core.fast_forward import FastForward, Weights


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Disable autocast on a device."""
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


class AutocastForward(FastForward[Weights]):
    """Adapter that follows autocast, unless the user has chosen a precision."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the products."""
        device = self.parameter.device.type
        if self.options.precision is None and torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
        return super().dtype

    def without_autocast(self) -> AbstractContextManager[object]:
        """Disable autocast on the device of the module."""
        return without_autocast(self.parameter.device)

    def _unsupported_mode(self, arguments: Mapping[str, Any]) -> str | None:
        """Allow autocast."""
        with self.without_autocast():
            return super()._unsupported_mode(arguments)
