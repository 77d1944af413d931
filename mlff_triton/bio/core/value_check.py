"""Checks of tensors' values that do not keep the GPU waiting."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing


class ValueCheck(ABC):
    """Check of the values of a tensor, queued before the forward that uses them.

    The host waits for the check while the GPU already computes the forward. Its result is dropped
    if the tensor is refused. Each tensor is checked once, and again after a change. Tensors made in
    inference mode do not count their changes, so these are checked in every call. While a CUDA
    graph is captured, values are unknown and tensors pass.
    """

    def __init__(self) -> None:
        self._last: Callable[[], Tensor | None] = lambda: None
        self._version = 0
        self._found: str | None = None
        self._queued: tuple[Tensor, Callable[[], list[float]]] | None = None

    @abstractmethod
    def measure(self, tensor: Tensor) -> Tensor:
        """Return the few values that decide, on the tensor's device."""

    @abstractmethod
    def reason(self, *values: float) -> str | None:
        """Return the reason why a tensor with these values of `measure` is refused, or None."""

    def concerns(self, tensor: Tensor) -> bool:
        """Return True if the values of a tensor matter."""
        return tensor.numel() > 0

    def queue(self, tensor: Tensor) -> None:
        """Queue the check of a tensor, if it needs one."""
        is_needed = self._is_new(tensor) and not is_capturing(tensor)
        self._queued = (tensor, _download(self.measure(tensor))) if is_needed else None

    def refusal(self, tensor: Tensor) -> str | None:
        """Return the reason why a tensor is not supported, or None if it is."""
        if not self._is_new(tensor):
            return self._found if tensor is self._last() else None
        if is_capturing(tensor):
            return None
        queued, self._queued = self._queued, None
        is_queued = queued is not None and queued[0] is tensor
        read = queued[1] if queued and is_queued else _download(self.measure(tensor))
        self._found = self.reason(*read())
        if not tensor.is_inference():
            self._last, self._version = weakref.ref(tensor), tensor._version
        return self._found

    def _is_new(self, tensor: Tensor) -> bool:
        if not self.concerns(tensor):
            return False
        is_last = tensor is self._last() and not tensor.is_inference()
        return not is_last or tensor._version != self._version


class IndexCheck(ValueCheck):
    """Check of indices into a table; for indices outside it, kernels give NaN.

    Parameters
    ----------
    name : str
        Name of the indices in messages.
    n_rows : int
        Number of rows of the table.
    """

    def __init__(self, name: str, n_rows: int = 0) -> None:
        super().__init__()
        self._name, self._n_rows = name, n_rows

    def of(self, n_rows: int) -> IndexCheck:
        """Return the check for a table with this number of rows."""
        return self if n_rows == self._n_rows else IndexCheck(self._name, n_rows)

    def measure(self, tensor: Tensor) -> Tensor:
        """Return the least and the greatest index."""
        return torch.stack(tensor.aminmax())

    def reason(self, *values: float) -> str | None:
        """Refuse indices that are negative or too large."""
        if min(values) >= 0 and max(values) < self._n_rows:
            return None
        return f"{self._name} is not from 0 to {self._n_rows - 1}"

    def __reduce__(self) -> tuple[type[IndexCheck], tuple[str, int]]:
        return IndexCheck, (self._name, self._n_rows)


def _download(values: Tensor) -> Callable[[], list[float]]:
    """Queue the download of a few values; the function returned waits for them."""
    if not values.is_cuda:
        return values.tolist
    downloaded = torch.empty_like(values, device="cpu", pin_memory=True)
    done = torch.cuda.Event()
    with torch.cuda.device_of(values):  # whose stream copies, and is recorded
        downloaded.copy_(values, non_blocking=True)
        done.record()

    def read() -> list[float]:
        done.synchronize()
        found: list[float] = downloaded.tolist()
        return found

    return read
