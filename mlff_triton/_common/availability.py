"""Check that Triton kernels can run on a device."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

from mlff_triton.errors import BackendError

launch_anywhere = False
"""True while `mlff_triton.testing.launches` records launches instead of running them."""


def is_interpreting() -> bool:
    """Return True under Triton's interpreter (``TRITON_INTERPRET=1``), which runs on any device."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def triton_obstacle(device: torch.device, *, interpreter: bool = True) -> str | None:
    """Return the reason why Triton kernels cannot run on a device, or None if they can.

    Parameters
    ----------
    device : torch.device
        Device of the tensors.
    interpreter : bool
        If True, the interpreter counts as able to run; a CUDA graph cannot capture it.
    """
    anywhere = launch_anywhere or (interpreter and is_interpreting())
    if device.type != "cuda" and not anywhere:
        return f"Triton kernels need a GPU, and the device is {device}"
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    return None


def check_triton(device: torch.device, alternative: str = "use backend='torch'") -> None:
    """Check that Triton kernels can run on a device.

    Parameters
    ----------
    device : torch.device
        Device of the tensors.
    alternative : str
        Advice at the end of the message.

    Raises
    ------
    BackendError
        If they cannot run. The message gives the reason and the alternative.
    """
    obstacle = triton_obstacle(device)
    if obstacle is not None:
        raise BackendError(f"{obstacle}; {alternative}")
