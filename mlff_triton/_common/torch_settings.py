"""Computations that do not depend on the caller's settings of PyTorch.

Autocast, inference mode and anomaly detection belong to the thread that has set them. The default
device, the default dtype, the precision of products and the demand for deterministic algorithms
belong to the process; if they differ from those of a new process, other threads see them change
while our computation runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from mlff_triton.errors import InputError

Given = ParamSpec("Given")
Result = TypeVar("Result")

_AS_IT_IS: AbstractContextManager[None] = nullcontext()


def own_settings(
    then: AbstractContextManager[None] = _AS_IT_IS, *, keep_determinism: bool = False
) -> AbstractContextManager[None]:
    """Return a context with the settings of a new process, regardless of the caller's settings.

    Inside, autocast, inference mode and anomaly detection are off, products of float32
    matrices are in float32, and new tensors are in float32 and on the CPU unless they are given a
    dtype and a device.

    Parameters
    ----------
    then : context manager, optional
        Another context, such as a lock, that is entered with these settings.
    keep_determinism : bool
        True to keep the caller's demand for deterministic algorithms. Code that is deterministic by
        itself does not need it, and PyTorch would refuse some of its operators and fill new
        tensors.

    Returns
    -------
    context manager
        Entering it takes a microsecond if nothing has been set.
    """
    return then if _is_new(keep_determinism) else _new_settings(then, keep_determinism)


def with_own_settings(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a function so that all of it runs in `own_settings`."""

    @wraps(function)
    def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with own_settings():
            return function(*args, **kwargs)

    return wrapped


def normal(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a copy of one that was made in inference mode.

    PyTorch does not save such tensors for a backward pass.
    """
    return tensor.clone() if tensor.is_inference() else tensor


def check_not_transformed() -> None:
    """Raise `InputError` in a function that ``torch.func`` transforms, for example by ``grad``."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(
            "torch.func transforms neither models while they are loaded nor the engine: load the "
            "model outside, and call predict(..., create_graph=True) for derivatives"
        )


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Restore PyTorch's random stream of the CPU, whatever is drawn inside."""
    with torch.random.fork_rng(devices=()):
        yield


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Make PyTorch use a number of threads in this context; None leaves it unchanged."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def _is_new(keep_determinism: bool) -> bool:
    """Return True if the settings are those of a new process."""
    return not (
        torch.is_inference_mode_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
        or torch.get_default_dtype() is not torch.float32
        or torch.is_anomaly_enabled()
        or _has_function_modes()
        or _rounds_products()
        or (not keep_determinism and torch.are_deterministic_algorithms_enabled())
    )


def _has_function_modes() -> bool:
    """Return True if a mode sees all calls of PyTorch, as the mode of the default device does."""
    return torch._C._len_torch_function_stack() > 0


def _rounds_products() -> bool:
    """Return True if factors of float32 products may be rounded, to TF32 or bfloat16."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # backends differ, as the interface of PyTorch 2.9 has set some of them
        return True


@contextmanager
def _exact_products() -> Iterator[None]:
    backends: list[Any] = [torch.backends.cuda, torch.backends.mkldnn]
    if not hasattr(torch.backends.mkldnn, "matmul"):  # before PyTorch 2.9, they have one setting
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)
        return
    matmuls = [backend.matmul for backend in backends]
    chosen = [matmul.fp32_precision for matmul in matmuls]
    for matmul in matmuls:
        matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        for matmul, precision in zip(matmuls, chosen, strict=True):
            matmul.fp32_precision = "none"  # follows its backend, as it may have done
            if matmul.fp32_precision != precision:
                matmul.fp32_precision = precision


@contextmanager
def _new_settings(then: AbstractContextManager[None], keep_determinism: bool) -> Iterator[None]:
    with ExitStack() as stack:
        if _rounds_products():
            stack.enter_context(_exact_products())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(mode=False))
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_anomaly_enabled():
            stack.enter_context(torch.autograd.set_detect_anomaly(mode=False))
        if _has_function_modes():
            stack.enter_context(torch.device("cpu"))
        if torch.get_default_dtype() is not torch.float32:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        if not keep_determinism and torch.are_deterministic_algorithms_enabled():
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            stack.callback(torch.use_deterministic_algorithms, mode=True, warn_only=warns)
            torch.use_deterministic_algorithms(mode=False)
        stack.enter_context(then)
        yield
