"""Loops over atoms: compiled by Numba, cached on disk, and divided among threads.

A loop takes arrays and a range of atoms, and writes only the results of these atoms. So threads
need no locks, and results do not depend on their number.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

from numba import config, typeof
from numba.core.dispatcher import Dispatcher
from torch import Tensor

from mlff_triton.kernels.common.cpu.arrays import as_array
from mlff_triton.kernels.common.cpu.compilers import Task, compile_all
from mlff_triton.kernels.common.cpu.loop_cache import LoopCache
from mlff_triton.kernels.common.cpu.loop_compiler import LoopDispatcher
from mlff_triton.kernels.common.cpu.recording import perform
from mlff_triton.kernels.common.cpu.threads import in_parallel, n_threads

FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Liberties of the compiler: it may vectorize sums over channels, but not ignore NaN."""
COMMON = {
    "nopython": True,
    "error_model": "numpy",
    "nogil": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
}
"""Options of all loops. Arrays are not counted, which takes a seventh of the time to compile."""
FEWEST = 128
"""Smallest number of atoms in a range; fewer take less time than waking a thread."""
PIECES = 2
"""Ranges per thread, so that a late thread leaves some to the others."""

_LOG = logging.getLogger("mlff_triton")

Loop = Callable[..., None]
Function = Callable[..., Any]

_collected: ContextVar[list[Task] | None] = ContextVar("collected", default=None)


def is_off() -> bool:
    """Return True if the user has turned Numba's compiler off."""
    return bool(config.DISABLE_JIT)


def _compiled(function: Function, **options: Any) -> Any:
    """Return a function that Numba compiles when it is called, unless the compiler is off."""
    return function if is_off() else LoopDispatcher(function, targetoptions=COMMON | options)


def _inlined(**options: Any) -> Callable[[Function], Function]:
    """Return a decorator of functions that loops call.

    They cannot be called from Python, which would crash: tests call ``f.py_func``.
    """

    def decorate(function: Function) -> Function:
        found: Function = _compiled(function, no_cpython_wrapper=True, **options)
        return found

    return decorate


def _loop(**options: Any) -> Callable[[Loop], Loop]:
    """Return a decorator of functions ``f(*arrays, first, last)``, see `run`."""

    def decorate(function: Loop) -> Loop:
        found: Any = _compiled(function, **options)
        if not is_off():
            found._cache = LoopCache(found)
        loop: Loop = found
        return loop

    return decorate


inlined = _inlined(fastmath=FAST)
"""Decorator of functions that loops call."""
loop = _loop(fastmath=FAST)
"""Decorator of functions ``f(*arrays, first, last)``, see `run`."""
allocating_loop = _loop(fastmath=FAST, _nrt=True)
"""Decorator as `loop`, of loops that make arrays."""
exact_inlined = _inlined()
"""Decorator as `inlined`, for `exact_loop`."""
exact_loop = _loop()
"""Decorator as `loop`, for arithmetic that is done exactly as written.

So the vectors of opposite edges are opposite to the bit, and results are the same on all CPUs.
"""


def run(
    function: Loop, n_atoms: int, *arguments: Any, in_order: bool = False, fewest: int = FEWEST
) -> None:
    """Run a loop over a number of atoms, with as many threads as PyTorch uses.

    Parameters
    ----------
    function : callable
        The loop.
    n_atoms : int
        Number of atoms, N.
    *arguments
        Arguments of the loop before its range. Tensors on the CPU are passed as arrays.
    in_order : bool
        True for a loop that must run from the first atom to the last, in one thread.
    fewest : int
        Smallest number of atoms in a range whose work is worth a thread.
    """
    arrays = as_arrays(*arguments)
    tasks = _collected.get()
    if tasks is not None:
        _collect(tasks, function, arrays)
        return
    count = 1 if in_order else n_atoms // fewest
    if count > 1:
        threads = n_threads()
        count = min(PIECES * threads, count) if threads > 1 else 1
    if count <= 1:
        perform(function, *arrays, 0, n_atoms)
        return
    bounds = [n_atoms * k // count for k in range(count + 1)]
    perform(in_parallel, function, [(*arrays, *bound) for bound in pairwise(bounds)])


def run_part(function: Loop, first: int, last: int, *arguments: Any) -> None:
    """Run a loop over some of the atoms in this thread; arguments as for `run`."""
    arrays = as_arrays(*arguments)
    tasks = _collected.get()
    if tasks is not None:
        _collect(tasks, function, arrays)
        return
    perform(function, *arrays, first, last)


def as_arrays(*arguments: Any) -> list[Any]:
    """Return tensors on the CPU as arrays, and other arguments as they are."""
    return [as_array(x) if isinstance(x, Tensor) else x for x in arguments]


def _collect(tasks: list[Task], function: Loop, arrays: list[Any]) -> None:
    """Record the loops to compile: they are compiled ahead instead of run."""
    if isinstance(function, Dispatcher):
        tasks.append(Task(function, tuple(map(typeof, (*arrays, 0, 0)))))


def compile_ahead(launch: Callable[[], object]) -> None:
    """Compile all loops that a function runs, side by side and without running them.

    It raises no error of its own: if anything fails, `run` compiles the loops one by one.

    Parameters
    ----------
    launch : callable
        It is called once; during the call, `run` does nothing in this thread. So it must be
        harmless for any values in the memory that loops would have written.
    """
    tasks: list[Task] = []
    before = _collected.set(tasks)
    try:
        launch()
    except Exception:  # noqa: BLE001 - the same error is raised when loops run, if it matters
        _LOG.debug("not all loops are compiled ahead", exc_info=True)
    finally:
        _collected.reset(before)
    try:
        compile_all(tasks, min(n_threads(), os.cpu_count() or 1))
    except Exception:  # noqa: BLE001 - as above
        _LOG.debug("not all loops are compiled ahead", exc_info=True)
