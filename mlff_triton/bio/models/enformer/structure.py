"""Recognition of Enformer models that compute what their package does."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.recognition import is_unmodified
from mlff_triton.bio.core.settings import settings
from mlff_triton.kernels.genomics.types import ALIGNMENT

SOURCES = ("enformer_pytorch.", "einops.")
MAX_KEY, MAX_VALUE = 128, 256  # columns per head, for the shared memory of all supported GPUs
TRUNK = {1: "stem", 2: "conv_tower", 4: "transformer", 5: "crop_final", 6: "final_pointwise"}
"""Positions of the model's parts in its trunk; the other parts only swap axes."""


def is_known(module: nn.Module) -> bool:
    """Return True for an Enformer with the modules and shapes that its configuration gives.

    Its channels must be multiples of `ALIGNMENT`, its heads of attention at most `MAX_KEY` and
    `MAX_VALUE` wide, and its output heads linear maps with softplus.
    """
    if type(module).__name__ != "Enformer" or not is_unmodified(module, *SOURCES):
        return False
    return _is_as_configured(module) and _is_aligned(module)


def shrinkage(model: Any) -> int:
    """Return the number of bases per bin."""
    return 1 << (1 + len(model.conv_tower))


def function_of(module: nn.Module, name: str) -> Any:
    """Return a global of the Python module that defines the class of a module."""
    return type(module).forward.__globals__[name]


def _is_as_configured(model: Any) -> bool:
    """Return True if a model has the structure of a new one, apart from its heads."""
    with torch.device("meta"):
        fresh = type(model)(copy.deepcopy(model.config))
    return (
        _structure(model) == _structure(fresh)
        and all(model.trunk[k] is getattr(model, name) for k, name in TRUNK.items())
        and len(model.transformer) > 0
        and all(_is_head(head) for head in model.heads.values())
    )


def _structure(model: nn.Module) -> list[tuple[object, ...]]:
    """List names, classes, settings and shapes of parameters and buffers, without heads."""
    return [
        (
            name,
            type(module),
            settings(module),
            *((key, each.shape) for key, each in _tensors(module)),
        )
        for name, module in model.named_modules()
        if not name.startswith("_heads")
    ]


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def _is_head(head: Any) -> bool:
    if [type(part) for part in head.children()] != [nn.Linear, nn.Softplus]:
        return False
    return head[0].bias is not None and (head[1].beta, head[1].threshold) == (1, 20)


def _is_aligned(model: Any) -> bool:
    """Return True if the kernels can read all rows, and attention fits in shared memory."""
    widths = [
        each.weight.shape[0]
        for part in (model.stem, model.conv_tower, model.final_pointwise)
        for each in part.modules()
        if isinstance(each, nn.Conv1d)
    ]
    attention = model.transformer[0][0].fn[1]
    keys, values = (
        len(each.weight) // attention.heads for each in (attention.to_k, attention.to_v)
    )
    is_small = keys <= MAX_KEY and values <= MAX_VALUE
    return is_small and all(width % ALIGNMENT == 0 for width in widths)
