"""Operators of a step that need no neighbor list on a GPU: plain PyTorch, and loops for CPUs."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch

from mlff_triton._common.text import first_line
from mlff_triton.engine.charged_step import Operators
from mlff_triton.kernels.electrostatics.reference.charge_channels import channel_sums

PACKAGES = {"cpu": "cpu", "torch": "reference"}
"""Folder of the operators of each backend, within those of `mlff_triton.kernels`."""


def load(backend: str) -> Operators:
    """Import the operators of a backend; "cpu" needs Numba."""
    folder = PACKAGES[backend]
    network = import_module(f"mlff_triton.kernels.tensornet.{folder}.operators")
    charges = import_module(f"mlff_triton.kernels.tensornet2.{folder}.operators")
    return Operators(network, charges, channel_sums)


def cpu_obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return the reason why the loops for CPUs cannot serve, or None if they can.

    This does not import Numba. A broken Numba is known once `can_load` has tried.
    """
    if device.type != "cpu":
        return f"its loops run on a CPU, and the device is {device}"
    if dtype not in (torch.float32, torch.float64):
        return f"its loops serve float32 and float64, not {dtype}"
    if find_spec("numba") is None:
        return "its loops need Numba: pip install numba"
    return _failures.get("cpu")


def can_load(backend: str) -> bool:
    """Import the operators of a backend; return False, and inform `cpu_obstacle`, if that fails.

    Only the first attempt takes time.
    """
    if backend == "cpu" and backend not in _failures:
        _failures[backend] = _failure()
    return _failures.get(backend) is None


_failures: dict[str, str | None] = {}


def _failure() -> str | None:
    """Return the reason why loops for CPUs cannot be imported, or None if they can."""
    try:
        load("cpu")
        from mlff_triton.kernels.common.cpu.compilation import is_off
    except Exception as error:  # noqa: BLE001 - of any kind in a broken installation
        return f"its loops need Numba, which cannot be imported: {first_line(error)}"
    return "Numba's compiler is off: unset NUMBA_DISABLE_JIT" if is_off() else None
