"""Properties of a GPU that launchers depend on."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

KIB = 1024


def shared_memory(tensor: Tensor) -> int:
    """Return the shared memory that one program may use, in bytes; 64 KiB if it is unknown.

    AMD GPUs have that amount.
    """
    if torch.version.hip is not None or not tensor.is_cuda:
        return 64 * KIB
    properties = torch.cuda.get_device_properties(tensor.device)
    return int(getattr(properties, "shared_memory_per_block_optin", 99 * KIB))


def has_large_memory(tensor: Tensor) -> bool:
    """Return True if programs may use as much shared memory as on Hopper and later."""
    return shared_memory(tensor) >= 200 * KIB


def has_tensor_memory(tensor: Tensor) -> bool:
    """Return True if tensor cores sum in a memory of their own, as on data-center Blackwell.

    Compilers then take more shared memory for the same loop over products.
    """
    if torch.version.hip is not None or not tensor.is_cuda:
        return False
    return torch.cuda.get_device_capability(tensor.device)[0] == 10


def register_limit(registers: int | None) -> dict[str, int]:
    """Return launch options that limit the registers of a thread, on NVIDIA GPUs; none for None.

    Compilers spend registers that only hide latency, and take them from other programs.
    """
    return {"maxnreg": registers} if registers and torch.version.hip is None else {}


@cache
def total_memory(device: torch.device) -> int | None:
    """Return the memory of a GPU in bytes; None for any other device."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 4 for any other device."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def allows_tf32() -> bool:
    """Return True if PyTorch may round the factors of float32 products to TF32."""
    matmul = torch.backends.cuda.matmul
    chosen = getattr(matmul, "fp32_precision", None)  # before PyTorch 2.9, there is only the other
    return bool(matmul.allow_tf32) if chosen is None else chosen == "tf32"
