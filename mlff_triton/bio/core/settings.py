"""Plain attributes of modules, such as epsilons and scales, which a ``forward`` may read."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

# Attributes of modules that some adapters compare with those of a new module.
SETTINGS = (
    *("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode", "pad_mode"),
    *("method", "pool_size", "pattern", "heads", "head_dim", "num_rel_pos_features"),
    *("rms_norm", "channels_last", "elementwise_affine", "max_norm"),
)

# Modules and attributes that affect no result in evaluation mode.
INERT = (nn.Linear, nn.Dropout, nn.Identity, nn.Sequential, nn.ModuleList, nn.ModuleDict)
UNREAD = ("training", "forward", "gradient_checkpointing", "layer_idx", "inplace")

PLAIN = (bool, int, float, str, torch.dtype, FunctionType, BuiltinFunctionType)

_ABSENT = object()


def settings(module: nn.Module) -> tuple[Any, ...]:
    """Return the `SETTINGS` of a module; None for each that it lacks."""
    return tuple(map(vars(module).get, SETTINGS))


def plain_attributes(module: nn.Module, watches: Collection[str] = ()) -> dict[str, Any]:
    """Return copies of the plain attributes of a module, without those of submodules.

    Plain attributes are numbers, strings, functions, and tuples and lists of these. Private
    attributes, in which some modules keep tables from call to call, are left out unless an adapter
    watches them.
    """
    if type(module) in INERT:
        return {}
    return {
        name: copy.deepcopy(value)
        for name, value in vars(module).items()
        if name in watches or not (name.startswith("_") or name in UNREAD)
        if _is_plain(value)
    }


class Settings:
    """Plain attributes that an adapter does not watch, with their values at recognition.

    Parameters
    ----------
    module : torch.nn.Module
        Module that was recognized.
    watches : collection of str
        Names of the attributes that may change.
    """

    def __init__(self, module: nn.Module, watches: Collection[str]) -> None:
        self._watches = watches
        self._known: dict[nn.Module, dict[str, Any]] = {}
        self.change(module)

    def change(self, module: nn.Module) -> str | None:
        """Return the path of an attribute that has changed, or None.

        Submodules that have been added since are judged by the adapter when it recognizes them.
        """
        known, self._known = self._known, {}
        found = None
        for path, part in module.named_modules():
            before = known.get(part)
            if before is None:
                own = plain_attributes(part)
                before = {name: own[name] for name in own.keys() - set(self._watches)}
            self._known[part] = before
            for name, value in before.items():
                if not is_same(vars(part).get(name, _ABSENT), value):
                    found = found or f"{path}.{name}".strip(".")
        return found


def are_usual(modules: Iterable[nn.Module], *arguments: Any, watches: Collection[str]) -> bool:
    """Return True if plain attributes that an adapter does not watch equal those of new modules.

    Parameters
    ----------
    modules : iterable of torch.nn.Module
        Modules of one class.
    *arguments
        Arguments of the class.
    watches : collection of str
        Names of the attributes that may have other values.
    """
    modules = list(modules)
    try:
        with torch.device("meta"):
            new = type(modules[0])(*arguments)
    except Exception:  # noqa: BLE001 - a class may do anything with arguments that were changed
        return False
    usual = {path: plain_attributes(part) for path, part in new.named_modules()}
    return all(
        is_same(vars(part).get(name, _ABSENT), value)
        for module in modules
        for path, part in module.named_modules()
        for name, value in usual.get(path, {}).items()
        if name not in watches
    )


def is_same(value: Any, other: Any) -> bool:
    """Return True for attributes of one type that are equal."""
    return value is other or (type(value) is type(other) and bool(value == other))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, PLAIN)
