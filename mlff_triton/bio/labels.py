"""Losses whose labels count at padding, where accelerated encoders give zeros."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mlff_triton.bio.fast_forward import FastForward

IGNORED = -100  # label that does not count in a loss of transformers


class LabelGuard:
    """Callable that is set as ``forward`` of a model that computes a loss with an encoder.

    It calls the model's own ``forward``. If a label at padding counts in the loss, the encoder
    inside runs its original ``forward`` too.

    Parameters
    ----------
    module : torch.nn.Module
        Model whose ``forward`` is replaced.
    encoder : FastForward
        Forward of the encoder inside.
    """

    def __init__(self, module: nn.Module, encoder: FastForward[Any]) -> None:
        self.module, self.encoder = module, encoder
        self.before = vars(module).get("forward")
        self._names = tuple(inspect.signature(type(module).forward).parameters)[1:]

    @classmethod
    def is_needed(cls, module: nn.Module) -> bool:
        """Return True if a module takes labels."""
        return "labels" in inspect.signature(type(module).forward).parameters

    @property
    def __signature__(self) -> inspect.Signature:
        """Signature of the model's own ``forward``, which some training loops inspect."""
        own = inspect.signature(type(self.module).forward)
        return own.replace(parameters=tuple(own.parameters.values())[1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's own ``forward`` returns."""
        if not _labels_count_at_padding(dict(zip(self._names, args, strict=False)) | kwargs):
            return self._original(*args, **kwargs)
        self.encoder.set_aside = "labels at padding count in the loss; set them to -100"
        try:
            return self._original(*args, **kwargs)
        finally:
            self.encoder.set_aside = None

    def undo(self) -> None:
        """Give the module its own ``forward`` back."""
        if self.before is None:
            del self.module.forward
        else:
            self.module.forward = self.before

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        if self.before is not None:
            return self.before(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


def _labels_count_at_padding(arguments: Mapping[str, Any]) -> bool:
    labels, mask = arguments.get("labels"), arguments.get("attention_mask")
    if not isinstance(labels, Tensor) or not isinstance(mask, Tensor):
        return False
    return labels.shape == mask.shape and bool(((labels != IGNORED) & (mask == 0)).any())
