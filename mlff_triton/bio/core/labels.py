"""Losses whose labels count at padding, where accelerated encoders give zeros."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import FastForward
from mlff_triton.bio.core.replacement import Replacement, is_recording

IGNORED = -100  # label that does not count in a loss of transformers
POSITIONS = ("start_positions", "end_positions")  # classes of a loss over a sequence


class LabelGuard(Replacement):
    """Replacement of ``forward`` of a model that computes a loss with an encoder.

    It calls the model's own ``forward``. If the loss depends on the encoder's output at padding,
    the encoder inside runs its original ``forward`` too.

    Parameters
    ----------
    module : torch.nn.Module
        Model whose ``forward`` is replaced.
    encoder : FastForward
        Forward of the encoder inside.
    """

    def __init__(self, module: nn.Module, encoder: FastForward[Any]) -> None:
        super().__init__(module)
        self.encoder = encoder
        self._names = tuple(inspect.signature(type(module).forward).parameters)[1:]

    @classmethod
    def is_needed(cls, module: nn.Module) -> bool:
        """Return True if a module takes labels, or positions that it compares with all others."""
        names = inspect.signature(type(module).forward).parameters
        return not {"labels", *POSITIONS}.isdisjoint(names)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's own ``forward`` returns."""
        if is_recording() or self.is_undone:
            return self.original(*args, **kwargs)
        reason = self._obstacle(dict(zip(self._names, args, strict=False)) | kwargs)
        if reason is None:
            return self.original(*args, **kwargs)
        self.encoder.set_aside = reason
        try:
            return self.original(*args, **kwargs)
        finally:
            self.encoder.set_aside = None

    def _obstacle(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the reason why the loss depends on the encoder's output at padding, or None."""
        labels, mask = arguments.get("labels"), arguments.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.dim() != 2:
            return None
        is_padding = mask == 0
        has_positions = any(isinstance(arguments.get(name), Tensor) for name in POSITIONS)
        if has_positions and bool(is_padding.any()):
            return "the loss compares positions with those of padding"
        if not isinstance(labels, Tensor) or labels.numel() != mask.numel():
            return None
        counts = (labels != IGNORED).reshape(mask.shape).to(mask.device)  # may be flat
        if self._is_causal:  # an output is compared with the next label
            counts = nn.functional.pad(counts[:, 1:], (0, 1))
        if bool((counts & is_padding).any()):
            return "labels at padding count in the loss; set them to -100"
        return None

    @property
    def _is_causal(self) -> bool:
        return "LMHead" in type(self.module).__name__ or "CausalLM" in type(self.module).__name__
