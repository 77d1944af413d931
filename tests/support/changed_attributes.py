"""Attributes of modules that change before or after acceleration, which follows or falls back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from mlff_triton import bio
from mlff_triton.errors import UnsupportedModelError
from tests.support.precisions import FLOORS, Call, Outputs, error_of, flat

IGNORED = ("training", "inplace")
"""The mode has tests of its own; results of operations in place depend on who shares memory."""


def check_changed_attributes(model: nn.Module, call: Call) -> None:
    """Change each plain attribute of each class of modules in a model after it is accelerated.

    Whatever the model's own forward computes then, the accelerated one computes, too.

    Parameters
    ----------
    model : torch.nn.Module
        Model in float32 and in evaluation mode. It is returned to its state.
    call : callable
        Calls a model, see `tests.support.precisions.check_setting`.
    """
    stale = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, name, value in _attributes(model):
            before = getattr(module, name)
            with bio.accelerated(model, backend="torch"):
                _outputs(model, call)
                try:
                    setattr(module, name, value)
                    found = _outputs(model, call)
                finally:
                    setattr(module, name, before)
            try:
                setattr(module, name, value)
                own = _outputs(model, call)
            finally:
                setattr(module, name, before)
            if not isinstance(own, Exception) and not _agree(found, own):
                stale.append(f"{type(module).__name__}.{name} = {value}")
    assert not stale, stale


def check_unusual_attributes(model: nn.Module, call: Call) -> None:
    """Change each plain attribute of each class of modules before a model is accelerated.

    The accelerated model computes the same as its own forward, unless it is refused. Parameters
    are those of `check_changed_attributes`.
    """
    wrong = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, name, value in _attributes(model):
            before = getattr(module, name)
            setattr(module, name, value)
            try:
                own = _outputs(model, call)
                with bio.accelerated(model, backend="torch"):
                    found = _outputs(model, call)
            except UnsupportedModelError:
                continue
            finally:
                setattr(module, name, before)
            if not isinstance(own, Exception) and not _agree(found, own):
                wrong.append(f"{type(module).__name__}.{name} = {value}")
    assert not wrong, wrong


def _attributes(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Yield modules and their attributes, once for each class, with other values."""
    seen = set()
    for module in model.modules():
        for name, value in list(vars(module).items()):
            key = type(module), name
            if key not in seen and name not in IGNORED:
                seen.add(key)
                if type(value) is bool:
                    yield module, name, not value
                elif type(value) is int:
                    yield module, name, value * 2
                    yield module, name, value // 2
                elif type(value) is float:
                    yield module, name, value * 2 + 0.5


def _outputs(model: nn.Module, call: Call) -> Outputs | Exception:
    torch.manual_seed(7)
    try:
        with torch.inference_mode():
            return {name: values.clone() for name, values in flat(call(model))}
    except Exception as error:  # noqa: BLE001 - models raise many kinds
        return error


def _agree(found: Outputs | Exception, own: Outputs) -> bool:
    if isinstance(found, Exception) or found.keys() != own.keys():
        return False
    return all(
        values.shape == own[name].shape and error_of(values, own[name]) <= FLOORS[torch.float32]
        for name, values in found.items()
    )
