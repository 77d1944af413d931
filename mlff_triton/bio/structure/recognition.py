"""Recognition of modules by the classes of their submodules, and checks of their maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from mlff_triton.bio.weights import exact
from mlff_triton.errors import InputError

Children: TypeAlias = Mapping[str, frozenset[str]]

OPTIONAL = "nothing"
"""Stands for a submodule that may be missing."""


def children(kinds: Mapping[str, str]) -> Children:
    """Return the classes of submodules.

    Parameters
    ----------
    kinds : mapping of str to str
        Names of submodules, separated by spaces, for each class. Names of several classes of which
        one is possible are also separated by spaces; one of them may be `OPTIONAL`.
    """
    return {
        name: frozenset(classes.split())
        for classes, names in kinds.items()
        for name in names.split()
    }


def has_structure(module: nn.Module, known: Mapping[str, Children]) -> bool:
    """Return True if all submodules have the submodules that are known for their classes.

    Classes that are not known must not have any.
    """
    return all(has_children(part, known.get(type(part).__name__, {})) for part in module.modules())


def has_children(module: nn.Module, expected: Children) -> bool:
    """Return True if a module has the expected submodules, and no others."""
    found = {name: type(child).__name__ for name, child in module.named_children()}
    names: Iterable[str] = found.keys() | expected.keys()
    return all(found.get(name, OPTIONAL) in expected.get(name, ()) for name in names)


def weight(linear: Any) -> Tensor:
    """Return the weight of a map without a bias, in float64.

    Raises
    ------
    InputError
        If it has a bias, or computes in a dtype of its own.
    """
    if linear.bias is not None:
        raise InputError("a map has a bias")
    return exact_weight(linear)


def exact_weight(linear: Any) -> Tensor:
    """Return the weight of a map, in float64.

    Raises
    ------
    InputError
        If it computes in a dtype of its own.
    """
    if getattr(linear, "precision", None) is not None:
        raise InputError("a map computes in a dtype of its own")
    return exact(linear.weight)
