"""A LAMMPS command that is a Python function, for scripts that LAMMPS itself reads.

Only LAMMPS's own parser understands a script: its variables, loops, conditions and included files.
New commands come from plugins; their interface is in C except for one C++ object, a ``Command``.
LAMMPS only calls virtual methods of this object, so a table of three functions is enough (Itanium
C++ ABI). See https://docs.lammps.org/Developer_plugins.html.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from mlff_triton._common.remedies import install
from mlff_triton.errors import BackendError

REGISTER = "_ZN9LAMMPS_NS15plugin_registerEP14lammpsplugin_tPv"  # plugin_register, as C++ names it
ERASE = "_ZN9LAMMPS_NS12plugin_eraseEPKcS1_"  # plugin_erase

_Create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_Delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Execute = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))


class _Plugin(ctypes.Structure):
    """The C structure ``lammpsplugin_t``."""

    _fields_ = (
        ("version", ctypes.c_char_p),
        ("style", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("info", ctypes.c_char_p),
        ("author", ctypes.c_char_p),
        ("creator", _Create),
        ("handle", ctypes.c_void_p),
    )


class ScriptCommand:
    """A command of LAMMPS scripts, valid until it is removed.

    LAMMPS needs this object as long as the command can be called.

    Parameters
    ----------
    lmp : lammps.lammps
        A LAMMPS instance.
    name : str
        Name of the command.
    function : callable
        Called on all ranks with the words after the name. It must not raise: LAMMPS would continue.

    Raises
    ------
    BackendError
        If this LAMMPS was built without plugins.
    """

    def __init__(self, lmp: Any, name: str, function: Callable[[list[str]], None]) -> None:
        def execute(_this: int, n_words: int, words: Any) -> None:
            function([words[k].decode() for k in range(n_words)])

        if not lmp.has_package("PLUGIN") or not all(hasattr(lmp.lib, f) for f in (REGISTER, ERASE)):
            raise BackendError(f"this LAMMPS cannot load plugins: {install('lammps')}")
        self._execute = _Execute(execute)
        self._delete = _Delete(lambda _this: None)
        # Destructor, the one of `delete`, and `command`, in order of their declaration
        addresses = [ctypes.cast(f, ctypes.c_void_p) for f in (self._delete, self._execute)]
        self._methods = (ctypes.c_void_p * 3)(addresses[0], addresses[0], addresses[1])
        self._object = ctypes.c_void_p(ctypes.addressof(self._methods))
        self._create = _Create(lambda _lammps: ctypes.addressof(self._object))
        # LAMMPS closes the handle in the end, so it gets one of its own.
        library = ctypes.CDLL(lmp.lib._name)
        plugin = _Plugin(
            None, b"command", name.encode(), name.encode(), name.encode(), self._create,
            library._handle,
        )  # fmt: skip
        register = getattr(lmp.lib, REGISTER)
        register.argtypes = [ctypes.POINTER(_Plugin), ctypes.c_void_p]
        register.restype = None
        self._plugin, self._erase = plugin, getattr(lmp.lib, ERASE)
        self._erase.argtypes, self._erase.restype = [ctypes.c_char_p, ctypes.c_char_p], None
        register(ctypes.byref(plugin), lmp.lmp)

    def remove(self) -> None:
        """Make LAMMPS forget the command, so that another instance can use its name."""
        self._erase(self._plugin.style, self._plugin.name)
