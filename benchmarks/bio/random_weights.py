"""Random weights of whole models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest import mock

import torch
from torch import Tensor, nn


@contextmanager
def no_initialization(*functions: tuple[ModuleType, str]) -> Iterator[None]:
    """Skip the slow random numbers of new layers, which are replaced anyway.

    Functions of packages that initialize a tensor are given by their modules and names.
    """

    def skip(tensor: Tensor, *_: object, **__: object) -> Tensor:
        return tensor

    with ExitStack() as stack:
        for module, name in ((nn.init, "kaiming_uniform_"), *functions):
            stack.enter_context(mock.patch.object(module, name, skip))
        yield


def randomize(model: nn.Module, outputs: Sequence[str]) -> None:
    """Fill all parameters with random numbers, as output maps and gates start as zeros.

    Maps whose names end with one of ``outputs``, whose results are added to tokens or pairs, are
    smaller the more blocks there are, so that sums do not grow.
    """
    rng = torch.Generator(next(model.parameters()).device).manual_seed(1)
    stacks = {n: len(part) for n, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=rng, device=p.device)
            path, _, kind = name.rpartition(".")
            if p.dim() < 2:
                p.copy_(noise / 4)
                if kind == "weight":
                    p.add_(1)  # of a normalization
                continue
            size = p.shape[1:].numel() ** -0.5
            if path.endswith(tuple(outputs)):
                depth = next((d for stack, d in stacks.items() if path.startswith(f"{stack}.")), 1)
                size *= depth**-0.5
            p.copy_(noise * size)
