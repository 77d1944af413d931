"""Triton's preparations before its first kernel, once per process and beside other work."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache as once
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from types import ModuleType

from mlff_triton._common import cache

PARTS = (
    "triton.runtime.cache",
    "triton.runtime.driver",
    "triton.experimental.gluon.nvidia.hopper",
)
"""Modules that the first launch imports; the first two have ``triton_key`` and ``driver``."""
HASHED = ("runtime/cache.py", "compiler", "backends", "_C", "language")
"""Files and folders of Triton that its key depends on."""
LATER = 10.0
"""Seconds after which a kept key is compared with Triton's own, so that it delays no first step."""


@once
def start_triton() -> Event:
    """Begin to import Triton, its driver and its key, once per process; wait for the event.

    Before its first launch Triton hashes its own libraries, hundreds of megabytes, for a key that
    identifies the compiler in the names of cached kernels. This takes 0.3 to 0.7 s. The key is kept
    in the user's cache folder as long as none of the files changes, and serves launches until this
    process knows the hash, too.
    """
    is_ready = Event()
    Thread(target=_start, args=(is_ready,), name="start-triton", daemon=True).start()
    return is_ready


def _start(is_ready: Event) -> None:
    try:
        with suppress(Exception):  # the first launch does the same, and reports what is wrong
            modules = [import_module(name) for name in PARTS]
            with suppress(Exception):
                modules[1].driver.active  # noqa: B018 - compiles C code the first time
            find_key(modules[0], is_ready)
    finally:
        is_ready.set()


def find_key(module: ModuleType, is_ready: Event) -> None:
    """Call ``triton_key`` of ``triton.runtime.cache``, which remembers its result.

    If the user's cache folder has the key, launches get it from there at first. Triton computes its
    own some seconds later: its hash would compete with the first step, which then takes half a
    second longer.

    Parameters
    ----------
    module : module
        ``triton.runtime.cache``.
    is_ready : Event
        Set as soon as calls of the function in the module return at once.
    """
    compute: Callable[[], str] = module.triton_key
    assert module.__file__ is not None
    name = _state_of_files(Path(module.__file__).parents[1])
    kept = cache.read("triton", name)
    if kept is None:
        key = compute().encode()
    else:
        with _lent(module, kept):
            is_ready.set()
            time.sleep(LATER)
            key = compute().encode()
    if key != kept:
        cache.write("triton", name, key)


@contextmanager
def _lent(module: ModuleType, key: bytes) -> Iterator[None]:
    """Make ``triton_key`` of a module return a key, for all threads, until the block ends.

    Triton takes a key only from this function, which computes before it remembers. If other code
    has replaced the function during the block, the replacement stays.
    """
    own, lent = module.triton_key, key.decode
    module.triton_key = lent  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if module.triton_key is lent:
            module.triton_key = own  # type: ignore[attr-defined]


def _state_of_files(root: Path) -> str:
    """Return a hash of the state of all files in `HASHED`, without reading them.

    Files are recognized by name, size, inode, and the times of their last changes; programs that
    unpack or copy files cannot set the second of these times.
    """
    digest = hashlib.sha256()
    for path in sorted(_files(root)):
        status = path.stat()
        mark = status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
        digest.update(f"{path} {mark}\n".encode())
    return digest.hexdigest()


def _files(root: Path) -> Iterator[Path]:
    """Yield the files in `HASHED` except for bytecode, which changes without its source."""
    for part in HASHED:
        path = root / part
        found = [path] if path.is_file() else path.rglob("*")
        yield from (file for file in found if file.is_file() and file.suffix != ".pyc")
