"""Weights that kernels can read: plain tensors in memory, of the usual dtypes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def weights_obstacle(module: nn.Module) -> str | None:
    """Return the reason why kernels cannot read the parameters and buffers of a module, or None.

    Quantized, sharded and offloaded weights, for example, are tensors of other classes, layouts or
    devices, or have other dtypes.
    """
    for name, parameter in module.named_parameters():
        problem = _problem(parameter, nn.Parameter)
        if problem is None and parameter.dtype not in DTYPES:
            problem = f"of {parameter.dtype}"
        if problem is not None:
            return f"its parameter {name} is {problem}"
    for name, buffer in module.named_buffers():
        problem = _problem(buffer, Tensor)
        if problem is not None:
            return f"its buffer {name} is {problem}"
    return None


def _problem(tensor: Tensor, *kinds: type[Tensor]) -> str | None:
    """Return what is unusual about a tensor, or None."""
    if type(tensor) not in (Tensor, *kinds):
        return f"of the class {type(tensor).__name__}"
    if tensor.is_meta:
        return "on the meta device, without values"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return f"quantized or of the layout {tensor.layout}"
    return None
