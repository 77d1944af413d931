"""Keys of all kernels in Triton's cache, for a process of its own without ``TRITON_INTERPRET``.

``python -m tests.support.cache_keys`` prints them as a JSON object. With the argument ``child`` it
does so without PyTorch, and with ``reversed`` in the opposite order.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import mlff_triton.kernels
from mlff_triton._common.child_process import leave_pytorch_out


def main(arguments: list[str]) -> None:
    """Print the keys."""
    if "child" in arguments:
        leave_pytorch_out({"cuda": "13.0", "hip": None})
    from triton.runtime.jit import JITFunction

    from mlff_triton.kernels.common.cache_keys import settle_key

    (folder,) = map(Path, mlff_triton.kernels.__path__)
    kernels = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if path.stem == "__init__" or "cpu" in parts:
            continue
        module = import_module(".".join((mlff_triton.kernels.__name__, *parts)))
        kernels |= {
            f"{module.__name__}.{name}": value
            for name, value in vars(module).items()
            if isinstance(value, JITFunction)
        }
    for kernel in reversed(kernels.values()) if "reversed" in arguments else kernels.values():
        settle_key(kernel)
    sys.stdout.write(json.dumps({name: kernel.cache_key for name, kernel in kernels.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
