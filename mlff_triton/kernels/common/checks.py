"""Checks of operator inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlff_triton._common.availability import check_triton
from mlff_triton.errors import InputError

FLOATS = (torch.float32, torch.float64)
_INTEGERS = (torch.int64, torch.int32)


def check_device(*tensors: Tensor) -> None:
    """Check that all tensors are on one device that Triton can launch on.

    Triton's interpreter (``TRITON_INTERPRET=1``) accepts any device.

    Raises
    ------
    InputError
        If the tensors are on different devices.
    BackendError
        If their device is not a GPU.
    """
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise InputError(f"the tensors are on different devices, {names}: move them to one device")
    if not tensors[0].is_cuda:  # nothing more on a GPU: every operator calls this
        check_triton(tensors[0].device, "move the tensors to 'cuda', or use backend='torch'")


def check_floats(**tensors: Tensor) -> None:
    """Check that the named tensors share a device that Triton serves, and float32 or float64.

    Raises
    ------
    InputError
        If the tensors are on different devices, or their dtypes differ or are not supported.
    BackendError
        If their device is not a GPU.
    """
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) > 1 or not dtypes.issubset(FLOATS):
        found = ", ".join(f"{name} is {t.dtype}" for name, t in tensors.items())
        raise InputError(f"{found}: use float32 or float64, the same for all")
    check_device(*tensors.values())


def check_shape(name: str, tensor: Tensor, shape: Sequence[int | str]) -> None:
    """Check that a tensor has this shape; a dimension given as a string may have any size.

    Raises
    ------
    InputError
        If the shape differs.
    """
    found = tensor.shape
    fits = len(found) == len(shape)
    for size, wanted in zip(found, shape, strict=False):  # every operator calls this
        if size != wanted and not isinstance(wanted, str):
            fits = False
    if not fits:
        raise InputError(
            f"{name} has the shape {list(found)} instead of [{', '.join(map(str, shape))}]"
        )


def check_integers(**tensors: Tensor | None) -> None:
    """Raise `InputError` unless the named tensors are int64, int32 or None."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in _INTEGERS:
            raise InputError(f"{name} is {tensor.dtype}: use int64 or int32")


def check_pointers(row_ptr: Tensor) -> None:
    """Raise `InputError` unless a tensor can be the row pointer of consecutive segments."""
    check_shape("row_ptr", row_ptr, ("B + 1",))
    if row_ptr.dtype not in _INTEGERS or not len(row_ptr):
        raise InputError("row_ptr must be int64 or int32, with at least one element")


def expanded(name: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor broadcast to a shape, as a view.

    Raises
    ------
    InputError
        If the tensor does not broadcast to that shape.
    """
    try:
        return tensor.expand(*shape)
    except RuntimeError:
        raise InputError(
            f"{name} has the shape {list(tensor.shape)}, which does not broadcast to {list(shape)}"
        ) from None


def check_graph(
    x: Tensor, n_atoms: int, n_edges: int, row_ptr: Tensor, senders: Tensor, reverse: Tensor
) -> None:
    """Check that a CSR neighbor list fits the numbers of atoms and edges.

    Raises
    ------
    InputError
        If a shape or dtype is wrong, or the tensors are on different devices.
    BackendError
        If their device is not a GPU.
    """
    check_device(x, row_ptr, senders, reverse)
    check_integers(row_ptr=row_ptr, senders=senders, reverse=reverse)
    check_shape("row_ptr", row_ptr, (n_atoms + 1,))
    check_shape("senders", senders, (n_edges,))
    check_shape("reverse", reverse, (n_edges,))
