"""Concurrent execution of launches that are too small to fill a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from itertools import cycle, repeat
from typing import Any

import torch
from torch import Tensor

SIDES = 3  # streams besides the current one


@contextmanager
def side_by_side(tensor: Tensor, n: int) -> Iterator[Iterator[AbstractContextManager[Any]]]:
    """Yield contexts for n launches that may run at the same time on the tensor's GPU.

    They begin after all earlier launches, and all later launches wait for them. Tensors that they
    read must stay alive until then.
    """
    if n < 2 or not tensor.is_cuda:
        yield repeat(nullcontext())
        return
    current = torch.cuda.current_stream(tensor.device)
    sides = _sides(tensor.device)[: n - 1]
    for side in sides:
        side.wait_stream(current)
    try:
        yield map(torch.cuda.stream, cycle([current, *sides]))
    finally:
        for side in sides:
            current.wait_stream(side)


@cache
def _sides(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(SIDES)]
