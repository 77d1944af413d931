"""Settings of PyTorch that callers may change without changing a calculator's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=before, warn_only=warns)


@contextmanager
def _rounded_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


CALLER_SETTINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast on a GPU": lambda: torch.autocast("cuda", enabled=torch.cuda.is_available()),
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
    "default dtype": lambda: _default_dtype(torch.float64),
    "deterministic algorithms": _deterministic,
    "rounded products": _rounded_products,
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(mode=True),
}
"""Contexts of PyTorch by name, each of which changes a setting until it is left."""


def random_states() -> list[torch.Tensor]:
    """Return the states of PyTorch's random streams on the CPU and on all GPUs."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *on_gpus]
