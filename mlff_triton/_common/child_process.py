"""Python processes that compile for this one: their start, and the communication with them.

They have the paths of their parent but none of its modules, and never use a GPU. They do not import
PyTorch either, which would take longer than their work. Modules of operators import PyTorch, and
find objects that have any name and do nothing.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from io import BufferedRWPair
from pathlib import Path
from types import ModuleType
from typing import IO, Any

HIDDEN = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Environment variables whose empty values keep a process away from all GPUs."""


def can_start() -> bool:
    """Return True if this process can start others of the same Python.

    Programs that embed Python, and frozen programs, would start themselves again.
    """
    name = Path(sys.executable or "").stem.lower()
    return name.startswith("python") and not getattr(sys, "frozen", False)


def send(pipe: IO[bytes] | BufferedRWPair[Any, Any], content: Any) -> None:
    """Write an object, to be read by `receive`."""
    pickle.dump(content, pipe)
    pipe.flush()


def receive(pipe: IO[bytes] | BufferedRWPair[Any, Any]) -> Any:
    """Read what `send` wrote; None if the other end is closed."""
    try:
        return pickle.load(pipe)  # noqa: S301 - of our own processes
    except (EOFError, OSError, pickle.UnpicklingError):
        return None


def leave_pytorch_out(version: Mapping[str, str | None] | None = None) -> None:
    """Make imports of PyTorch and its modules in this process find objects that do nothing.

    Their attributes are classes, which can be called, subclassed and used as decorators. They have
    no truth value: a module that needs one fails to import instead of deciding wrongly.

    Parameters
    ----------
    version : dict, optional
        Attributes of ``torch.version`` by which modules decide, as the parent has them.
    """
    sys.meta_path.insert(0, _Finder())
    vars(import_module("torch.version")).update(version or {})


class _Finder(MetaPathFinder, Loader):
    """Finds all modules of PyTorch."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        del path, target
        is_torch = fullname.partition(".")[0] == "torch"
        return ModuleSpec(fullname, self, is_package=True) if is_torch else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        del module


class _Absent(type):
    """A stand-in for anything in PyTorch."""

    def __getattr__(cls, name: str) -> _Absent:
        return _attribute(cls, name)

    def __call__(cls, *arguments: object, **options: object) -> _Absent:
        del arguments, options
        return cls

    def __getitem__(cls, item: object) -> _Absent:
        del item
        return cls

    def __bool__(cls) -> bool:
        raise TypeError(f"{cls.__name__} of PyTorch is left out of this process")


class _AbsentModule(ModuleType):
    """A stand-in for a module of PyTorch."""

    def __getattr__(self, name: str) -> _Absent:
        return _attribute(self, name)


def _attribute(owner: _Absent | _AbsentModule, name: str) -> _Absent:
    """Return the same stand-in each time, except for names with a meaning in Python."""
    if name.startswith("__"):
        raise AttributeError(name)
    found = _Absent(name, (), {})
    setattr(owner, name, found)
    return found
