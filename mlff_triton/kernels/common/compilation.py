"""Compilation of kernels side by side, before their first launch.

A step launches some thirty kernels. If each is compiled when it is launched, all but one core wait.
Here, threads compile all of them, in the mode that Triton has for this. LLVM, ptxas and the C
compiler that makes Triton's launchers do not hold Python's lock, but Triton's front end does. If
many kernels have to be compiled, each thread therefore lets another process compile into Triton's
cache on disk, where it then finds the machine code. If any of this fails, threads or launches
compile kernels themselves, and a warning gives the reason.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from inspect import getclosurevars
from typing import Any

import torch
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager
from triton.runtime.jit import JITFunction

from mlff_triton._common.availability import is_interpreting
from mlff_triton._common.notice import Notice
from mlff_triton._common.triton_start import start_triton
from mlff_triton.kernels.common.cache_keys import settle_key
from mlff_triton.kernels.common.child import Task
from mlff_triton.kernels.common.compilers import (
    Compilers,
    remember_compiled,
    take_compilers,
)

FEWEST = 8
"""Number of kernels to be compiled that makes it worth starting processes."""

_LOG = logging.getLogger("mlff_triton")
_LOCK = threading.RLock()  # one function at a time, which may call another one that compiles ahead
_KERNELS = "mlff_triton.kernels."  # modules with kernels
_is_collecting = ContextVar("is_collecting", default=False)  # new threads begin with the default
_reported = set[type]()

Compiler = Callable[[], Any]
Compilation = tuple[Future[Any], Callable[[Any], object]]
"""A kernel being compiled, and the function that keeps it for launches."""


def compile_ahead(launch: Callable[[], object]) -> None:
    """Compile all kernels that a function launches, without running them.

    It never raises an error. If all kernels are compiled already, it only calls the function.

    Parameters
    ----------
    launch : callable
        It is called once; during the call, the package's launches in this thread do nothing. Other
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
    """Compile the kernels of a function in threads, one per core, and keep them."""
    compilers = take_compilers()
    pool = ThreadPoolExecutor(compilers.count, "compile-kernels")  # so that each has a process
    try:
        compilations = _submitted(launch, pool, compilers)
        _wait([future for future, _ in compilations])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        compilers.stop()
    for future, keep in compilations:
        error = future.exception()
        if error is None:
            keep(future.result())
        else:
            _report(error)
    if compilations and not any(future.exception() for future, _ in compilations):
        remember_compiled()


def _submitted(
    launch: Callable[[], object], pool: ThreadPoolExecutor, compilers: Compilers
) -> Collection[Compilation]:
    """Begin to compile the kernels that have no machine code in this process yet."""
    from triton import AsyncCompileMode  # missing in Triton 3.3

    found: dict[str, Compilation] = {}
    absent: list[Source] = []

    class Collector(AsyncCompileMode):
        """Compiles kernels in the pool; their launches run nothing."""

        def submit(
            self, key: str, compiler: Compiler, keep: Callable[[Any], object], *_: object
        ) -> None:
            if key in found:
                return
            source = Source.of(compiler)
            if source is not None and not source.is_on_disk(key):
                absent.append(source)
                if len(absent) == FEWEST:
                    compilers.start(sorted({each.task.module for each in absent}))
                compiler = partial(_compile_elsewhere, compilers, source, compiler)
            lock = nullcontext() if source is None else source.lock
            found[key] = pool.submit(_compile_with_launcher, compiler, lock), keep

    with Collector(executor=pool), _launches_skipped():
        launch()
    for source in absent:  # by threads that have no kernel to compile
        pool.submit(source.compile_launcher)
    return found.values()


def _compile_elsewhere(compilers: Compilers, source: Source, compiler: Compiler) -> Any:
    """Let another process, if there is one, compile a kernel, and load it or compile it here."""
    compilers.compile(source.task)
    return compiler()


def _compile_with_launcher(compiler: Compiler, lock: AbstractContextManager[object]) -> Any:
    """Compile a kernel and the C code of its launcher; the first launch finds both on disk."""
    kernel = _compiled(compiler)
    with lock:
        driver.active.launcher_cls(kernel.src, kernel.metadata)
    return kernel


def _compiled(compiler: Compiler) -> Any:
    """Compile a kernel, again if Python's parser fails: old versions do when two threads use it."""
    try:
        return compiler()
    except SystemError:
        return compiler()


@dataclass(frozen=True)
class Source:
    """A kernel that Triton is about to compile.

    Attributes
    ----------
    source : triton.compiler.ASTSource
        As Triton has it.
    task : Task
        The same kernel for another process.
    lock : Lock
        Held while a thread compiles the launcher.
    """

    source: Any
    task: Task
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, compiler: Compiler) -> Source | None:
        """Return the kernel that Triton's function compiles; None unless it is one of ours."""
        with suppress(KeyError, AttributeError):  # of other versions of Triton
            variables = getclosurevars(compiler).nonlocals
            source, target, options = (variables[name] for name in ("src", "target", "options"))
            module, name = source.fn.__module__, source.fn.__name__
            ours = module.startswith(_KERNELS)
            if ours and vars(sys.modules[module]).get(name) is source.fn:
                arguments = source.signature, source.constants, source.attrs
                settings = target, dict(vars(options)), dict(os.environ)
                return cls(source, Task(module, name, *arguments, *settings))
        return None

    def is_on_disk(self, key: str) -> bool:
        """Return True if Triton's cache has the machine code."""
        with suppress(Exception):  # the error is raised again when the kernel is compiled
            manager = get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
            name = f"{self.source.name[:150]}.json"  # as Triton shortens it
            return name in (manager.get_group(name) or {})
        return False

    def compile_launcher(self) -> None:
        """Compile the C code of the launcher in parallel, unless a thread does so already."""
        if self.lock.acquire(blocking=False):
            try:
                driver.active.launcher_cls(self.source, _Expected(self.task.options))
            except Exception:  # noqa: BLE001 - it is raised again when there is machine code
                _LOG.debug("a launcher is not compiled ahead", exc_info=True)
            finally:
                self.lock.release()


class _Expected:
    """Metadata of a kernel that is not compiled yet: its options, and None for anything else."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        vars(self).update(options)

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _launches_skipped() -> Iterator[None]:
    """Make the package's launches in this thread end before the kernel runs.

    This concerns kernels that have machine code already, because Triton's mode skips all others;
    those get keys that other processes share. Each kernel object temporarily gets its own method;
    Triton's class is unchanged.
    """

    def run(kernel: JITFunction, *args: Any, warmup: bool, **options: Any) -> Any:
        settle_key(kernel)
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
    """Log why kernels are not compiled ahead; it is a warning the first time for each error.

    A rehearsal may lack memory while buffers of the previous step are alive; there is no warning
    then.
    """
    is_known = type(error) in _reported or isinstance(error, torch.OutOfMemoryError)
    level = logging.DEBUG if is_known else logging.WARNING
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
