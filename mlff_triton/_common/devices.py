"""Devices and dtypes by name."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from mlff_triton.errors import BackendError, InputError

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def dtype_name(dtype: str | torch.dtype) -> str:
    """Return the name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def find_dtype(given: str | torch.dtype) -> torch.dtype:
    """Return the dtype of a name, or one of PyTorch's.

    Raises
    ------
    InputError
        If networks cannot compute in it.
    """
    name = dtype_name(given)
    if name not in DTYPES:
        raise InputError(f"dtype={name!r} is unknown: use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def find_device(name: str | torch.device) -> torch.device:
    """Return the device of a name, which may be "auto".

    Raises
    ------
    InputError
        If the device is neither a CPU nor a GPU.
    BackendError
        If this machine has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device={name!r} is unknown: use 'auto', 'cpu' or 'cuda'") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device={name!r} is not supported: use 'auto', 'cpu' or 'cuda'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BackendError(f"there is no usable GPU for {device}: use device='cpu' or 'auto'")
    return device


def made_current(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which kernels are launched on a device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def find_devices(names: str) -> list[torch.device]:
    """Return the devices of a list of names that are separated by commas, or of a single name.

    Only the CPU may be named repeatedly: each time stands for a process.

    Raises
    ------
    InputError
        If a name is unknown or "auto" is in a list, a GPU is named twice, or a list has both the
        CPU and GPUs, whose results differ in the last bits.
    BackendError
        If this machine has no such device.

    Examples
    --------
    >>> find_devices("cpu,cpu")
    [device(type='cpu'), device(type='cpu')]
    """
    if "," not in names:
        return [find_device(names)]
    found: list[torch.device] = []
    for name in names.split(","):
        if name == "auto":
            raise InputError(f"device={names!r}: 'auto' stands alone, so name each device")
        device = find_device(name)
        if device.type == "cuda":
            device = torch.device("cuda", device.index or 0)
            if device in found:
                raise InputError(f"device={names!r} has {device} twice: name each GPU once")
        found.append(device)
    if len({device.type for device in found}) > 1:
        raise InputError(f"device={names!r} has the CPU and GPUs: use either")
    return found
