"""Program of a process that compiles loops for another one, until its input ends.

Loops come with the functions that they call. Numba still imports the modules of these functions,
without PyTorch, see `mlff_triton._common.child_process`. Modules that need PyTorch are empty.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import IO

from mlff_triton._common.child_process import leave_pytorch_out, receive, send

START = f"""
import pickle, sys
version, sys.path[:] = pickle.load(sys.stdin.buffer)
if version == sys.version:
    from {__name__} import serve
    serve(sys.stdin.buffer, sys.stdout.buffer)
"""
"""Code of the process, which has the paths of its parent but none of its modules."""


def serve(given: IO[bytes], results: IO[bytes]) -> None:
    """Compile loops, each given with types of its arguments; answer with code, or None."""
    from numba.core.registry import cpu_target
    from numba.core.serialize import loads

    from mlff_triton.kernels.common.cpu.loop_cache import modules_of, pack

    leave_pytorch_out()
    cpu_target.target_context.refresh()
    gc.disable()  # it would take a tenth of the time
    sys.stdout = sys.stderr  # whatever prints must not disturb the results
    send(results, b"")
    while (task := receive(given)) is not None:
        content = None
        try:
            loop, types = loads(task)
            for name in modules_of(loop):
                _import(name)
            loop.compile(types)
            content = pack(loop.overloads[types])
        except Exception:  # noqa: BLE001, S110 - the parent compiles it, and reports what is wrong
            pass
        send(results, content)


def _import(name: str) -> None:
    """Import a module, or make an empty one."""
    try:
        import_module(name)
    except Exception:  # noqa: BLE001 - such as one that decides by what PyTorch has
        sys.modules[name] = ModuleType(name)
