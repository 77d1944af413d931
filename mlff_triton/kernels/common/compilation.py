"""Compilation of kernels side by side, before their first launch.

A step launches some thirty kernels. If each is compiled when it is launched, all but one core wait.
Here, threads compile all of them, by the mode that Triton has for this. Threads suffice: LLVM,
ptxas and the C compiler that makes Triton's launchers do not hold Python's lock. Python itself
takes an eighth of the processor time for the kernels of a step, and a fifth for a block of
structure prediction. If anything about this fails, launches compile their kernels themselves, and a
warning gives the reason.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from triton.runtime import driver
from triton.runtime.jit import JITFunction

from mlff_triton._common.availability import is_interpreting
from mlff_triton._common.notice import Notice
from mlff_triton._common.triton_start import start_triton

_LOG = logging.getLogger("mlff_triton")
_LOCK = threading.RLock()  # one function at a time, which may call another one that compiles ahead
_KERNELS = "mlff_triton.kernels."  # modules with kernels
_is_collecting = ContextVar("is_collecting", default=False)  # new threads begin with the default
_reported = set[type]()

Compiler = Callable[[], Any]
Compilation = tuple[Future[Any], Callable[[Any], object]]
"""A compiled kernel to be, and the function that keeps it for launches."""


def compile_ahead(launch: Callable[[], object]) -> None:
    """Compile all kernels that a function launches, without running them.

    It never raises an error. If all kernels are compiled already, it only calls the function.

    Parameters
    ----------
    launch : callable
        It is called once, and the package's launches in this thread do nothing meanwhile. Other
        threads launch as usual, including those in which PyTorch runs backward passes on a GPU.
        PyTorch's operators do run, with inputs that no kernel has written, so they must be harmless
        for any values: they must not use results of kernels as indices, nor write to tensors that
        are used later.
    """
    if is_interpreting() or _is_collecting.get():
        return
    start_triton().wait()
    try:
        with _LOCK:
            _compile(launch)
    except Exception as error:  # noqa: BLE001 - whatever fails here, launches report or repair
        _report(error)


def _compile(launch: Callable[[], object]) -> None:
    """Compile the kernels of a function in as many threads as there are cores, and keep them."""
    pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), "compile-kernels")
    try:
        compilations = _submitted(launch, pool)
        _wait([future for future, _ in compilations])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for future, keep in compilations:
        error = future.exception()
        if error is None:
            keep(future.result())
        else:
            _report(error)


def _submitted(launch: Callable[[], object], pool: ThreadPoolExecutor) -> Collection[Compilation]:
    """Begin to compile the kernels that have no machine code in this process yet."""
    from triton import AsyncCompileMode  # absent from Triton 3.3

    found: dict[str, Compilation] = {}

    class Collector(AsyncCompileMode):
        """Compiles kernels in the pool; their launches run nothing."""

        def submit(
            self, key: str, compiler: Compiler, keep: Callable[[Any], object], *_: object
        ) -> None:
            if key not in found:
                found[key] = pool.submit(_compile_with_launcher, compiler), keep

    with Collector(executor=pool), _launches_skipped():
        launch()
    return found.values()


def _compile_with_launcher(compiler: Compiler) -> Any:
    """Compile a kernel, and the C code of its launcher, which the first launch finds on disk."""
    kernel = compiler()
    driver.active.launcher_cls(kernel.src, kernel.metadata)
    return kernel


@contextmanager
def _launches_skipped() -> Iterator[None]:
    """Let the package's launches in this thread end before the kernel runs.

    This concerns kernels that have machine code already, as Triton's mode skips all others. Each
    kernel object gets a method of its own for a while; Triton's class stays as it is.
    """

    def run(kernel: JITFunction, *args: Any, warmup: bool, **options: Any) -> Any:
        skip = warmup or _is_collecting.get()
        return type(kernel).run(kernel, *args, warmup=skip, **options)

    kernels = _loaded_kernels()
    collecting = _is_collecting.set(True)
    for kernel in kernels:
        kernel.run = partial(run, kernel)
    try:
        yield
    finally:
        for kernel in kernels:
            del kernel.run
        _is_collecting.reset(collecting)


def _loaded_kernels() -> list[JITFunction]:
    """Return the package's kernels that may have machine code in this process."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(_KERNELS)]
    values = {id(value): value for module in modules for value in list(vars(module).values())}
    return [value for value in values.values() if isinstance(value, JITFunction)]


def _report(error: BaseException) -> None:
    """Log why kernels are not compiled ahead; it is a warning the first time for each error."""
    level = logging.DEBUG if type(error) in _reported else logging.WARNING
    _reported.add(type(error))
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    _LOG.log(level, "kernels compile one after another when they are launched: %s", reason)
    _LOG.debug("kernels are not compiled ahead", exc_info=error)


def _wait(compilations: Collection[Future[Any]]) -> None:
    """Wait until kernels are compiled; show progress."""
    pending = set(compilations)
    with Notice() as notice:
        while pending:
            pending = wait(pending, timeout=0.1).not_done
            done = len(compilations) - len(pending)
            notice.show(f"compiling kernels for this GPU: {done} of {len(compilations)}")
