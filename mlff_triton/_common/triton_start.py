"""Triton's preparations before its first kernel, once per process and beside other work."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache as once
from importlib import import_module
from pathlib import Path
from threading import Thread

from mlff_triton._common import cache

PARTS = ("triton.runtime.cache", "triton.experimental.gluon.nvidia.hopper")
"""Modules that the first launch imports; the first one has ``triton_key``."""
HASHED = ("runtime/cache.py", "compiler", "backends", "_C", "language")
"""Files and folders of Triton that its key depends on."""


@once
def start_triton() -> Thread:
    """Begin to import Triton and to find its key, once per process; join the thread to wait.

    Before its first launch Triton hashes its own libraries, hundreds of megabytes, for a key that
    identifies the compiler in the names of cached kernels. This takes 0.3 to 0.7 s. The key is kept
    in the user's cache folder for as long as none of the files changes.
    """
    thread = Thread(target=_start, name="start-triton", daemon=True)
    thread.start()
    return thread


def _start() -> None:
    with suppress(Exception):  # the first launch does the same, and reports what is wrong
        modules = [import_module(name) for name in PARTS]
        keep_key(modules[0])


def keep_key(module: object) -> None:
    """Let ``triton_key`` of ``triton.runtime.cache`` take its result from the user's cache folder.

    Files are recognized by name, size, inode, and the times of their last changes, of which the
    second cannot be set by a program that unpacks or copies them.
    """
    compute: Callable[[], str] = module.triton_key  # type: ignore[attr-defined]
    root = Path(module.__file__).parents[1]  # type: ignore[attr-defined]
    digest = hashlib.sha256()
    for path in sorted(_files(root)):
        status = path.stat()
        mark = status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        digest.update(f"{path} {mark}\n".encode())
    name = digest.hexdigest()
    kept = cache.read("triton", name)
    if kept is None:
        kept = compute().encode()
        cache.write("triton", name, kept)
    key = kept.decode()
    module.triton_key = lambda: key  # type: ignore[attr-defined]


def _files(root: Path) -> Iterator[Path]:
    """Yield the files in `HASHED` but for bytecode, which changes without its source."""
    for part in HASHED:
        path = root / part
        found = [path] if path.is_file() else path.rglob("*")
        yield from (file for file in found if file.is_file() and file.suffix != ".pyc")
