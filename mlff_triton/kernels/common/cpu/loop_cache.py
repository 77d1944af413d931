"""Machine code of loops in the user's cache folder.

Numba's own cache is beside the sources, fails if the disk is full or a file is damaged, and keeps
the code of a loop after a change of a function that it calls in another file. Here, the name of a
file depends on everything that determines the code: the bytecode and constants of a loop and of all
functions that it calls, types, compilers and processor. Numba's settings are not changed.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache as once
from functools import cached_property
from itertools import chain
from types import CodeType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.runtime import rtsys
from numba.core.serialize import dumps, loads

from mlff_triton._common import cache
from mlff_triton.kernels.common.cpu.algebra import Algebra
from mlff_triton.kernels.common.cpu.loop_folder import KIND, root

PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)


class LoopCache:
    """Machine code of one loop, in place of the cache of its dispatcher.

    Its methods never raise: code that cannot be read is compiled, and code that cannot be written
    is compiled again by the next process.

    Parameters
    ----------
    loop : Dispatcher
        The loop.
    """

    cache_path = None

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._received: dict[str, bytes] = {}

    def holds(self, types: Any, context: Any) -> bool:
        """Return True if `load_overload` will find code for these types of arguments."""
        key = self._key(types, context)
        content = self._received.get(key) or cache.read(KIND, key, root())
        if content is not None:
            self._received[key] = content
        return content is not None

    def receive(self, types: Any, context: Any, content: bytes) -> None:
        """Store code from another process."""
        key = self._key(types, context)
        self._received[key] = content
        cache.write(KIND, key, content, root())

    def load_overload(self, types: Any, context: Any) -> Any:
        """Return the compiled loop for types of arguments, or None."""
        key = self._key(types, context)
        content = self._received.pop(key, None) or cache.read(KIND, key, root())
        if content is None:
            return None
        with suppress(Exception):  # whatever is wrong with it, it is compiled again
            return unpack(content, context)
        return None

    def save_overload(self, types: Any, result: Any) -> None:
        """Store a compiled loop for types of arguments."""
        with suppress(Exception):  # as in `load_overload`
            cache.write(KIND, self._key(types, result.target_context), pack(result), root())

    def enable(self) -> None:
        """Do nothing, because the cache is never off."""

    def disable(self) -> None:
        """Do nothing, as in `enable`."""

    def flush(self) -> None:
        """Do nothing, because files of other code are never read."""

    def _key(self, types: Any, context: Any) -> str:
        config = numba.config
        options = config.OPT, config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT
        compilers = numba.__version__, llvmlite.__version__, sys.version, options
        given = types, context.codegen().magic_tuple(), compilers
        return hashlib.sha256(f"{self._fingerprint} {given}".encode()).hexdigest()

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self._loop)


def pack(result: Any) -> bytes:
    """Return a compiled loop as bytes."""
    content: bytes = dumps(result._reduce())
    return content


def unpack(content: bytes, context: Any) -> Any:
    """Return a compiled loop that is ready to be called.

    The parts of Numba that only a compilation needs are not loaded.
    """
    rtsys.initialize(context)
    return CompileResult._rebuild(context, *loads(content))


def fingerprint(loop: Any) -> str:
    """Return a hash of what a loop computes, including the functions that it calls."""
    digest = hashlib.sha256()
    compilers = chain(_definition(type(loop)), _definition(Algebra))
    for part in chain(compilers, _parts(loop, set())):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield the properties of a global value that compiled code depends on."""
    if id(value) in seen:
        return
    if isinstance(value, Dispatcher):
        seen.add(id(value))
        options = value.targetoptions.items()
        yield repr(sorted((k, sorted(v) if isinstance(v, set) else v) for k, v in options))
        yield repr(value.py_func.__defaults__)
        yield from _bytecode(value.py_func.__code__)
        yield from _of_used(value.py_func, seen)
    elif isinstance(value, Algebra):
        seen.add(id(value))
        yield from _bytecode(value.py_func.__code__)
        yield from _of_used(value.py_func, seen)
    elif isinstance(value, tuple):
        for each in value:
            yield from _parts(each, seen)
    elif isinstance(value, np.ndarray):
        yield repr((value.dtype, value.shape, value.tobytes()))
    elif isinstance(value, PLAIN):
        yield repr(value)
    else:
        yield from _definition(value)


def _of_used(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield everything outside a function that its compiled code depends on."""
    for name, each in sorted(_used(function).items()):
        yield name
        yield from _parts(each, seen)


def modules_of(loop: Any) -> set[str]:
    """Return the names of the modules of a loop and of the functions that it calls."""
    found, pending = {loop.py_func}, [loop.py_func]
    while pending:
        used = _used(pending.pop()).values()
        new = {each.py_func for each in used if isinstance(each, Dispatcher)} - found
        found |= new
        pending += new
    return {function.__module__ for function in found}


def _used(function: Any) -> dict[str, Any]:
    """Return the values that a function finds outside itself."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    known = function.__globals__
    nonlocals = inspect.getclosurevars(function).nonlocals
    return {name: known[name] for name in names if name in known} | dict(nonlocals)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _bytecode(code: CodeType) -> Iterator[str]:
    """Yield the relevant parts of bytecode, without line numbers and comments."""
    for each in _codes(code):
        yield repr((each.co_code, each.co_names, each.co_varnames, each.co_argcount))
        yield from (repr(x) for x in each.co_consts if not isinstance(x, CodeType))


def _definition(value: Any) -> Iterator[str]:
    """Yield the names of a module, class or other object, and the sources that define it here."""
    if isinstance(value, ModuleType):
        names = [value.__name__]
    else:
        names = [str(getattr(value, "__module__", "")), type(value).__module__]
        yield getattr(value, "__qualname__", type(value).__qualname__)
    for name in names:
        yield name
        if name.partition(".")[0] == __name__.partition(".")[0]:
            yield _source(name)


@once
def _source(name: str) -> str:
    """Return the source of a module, or its name and state if there is none."""
    module = sys.modules[name]
    try:
        return inspect.getsource(module)
    except OSError:
        return repr(sorted(map(repr, vars(module).items())))
