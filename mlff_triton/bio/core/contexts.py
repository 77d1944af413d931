"""Contexts of PyTorch that only a model's own ``forward`` supports."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as hooks

PLAIN = (Tensor, nn.Parameter, nn.Buffer)


def unsupported_context(values: Iterable[object]) -> str | None:
    """Return why the fast forward cannot compute arguments with these values, or None."""
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "global hooks of modules are registered, which the fast forward would not call"
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return "torch.func or forward-mode differentiation transforms the model"
    if torch._C._len_torch_dispatch_stack():
        return "a mode of PyTorch watches its operations"
    for value in values:
        if isinstance(value, Tensor) and type(value) not in PLAIN:
            return f"an input is a {type(value).__name__}"
    return None
