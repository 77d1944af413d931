"""Recognition of modules by their classes, their submodules' classes, and their sources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.fx import GraphModule

from mlff_triton.bio.core.replacement import Replacement, replacement_of
from mlff_triton.bio.core.snapshot import has_other_forward, is_checkpointed

Children: TypeAlias = Mapping[str, frozenset[str]]

GENERATED = (torch.jit.ScriptModule, GraphModule)

OPTIONAL = "nothing"
"""Class of a submodule that may be missing."""


def is_plain(module: Any, *kinds: type[nn.Module]) -> bool:
    """Return True for an instance of one of the classes, not a subclass, with its own forward."""
    return type(module) in kinds and not has_foreign_forward(module)


def is_unmodified(module: nn.Module, *sources: str, generates_code: bool = False) -> bool:
    """Return True if a module and its submodules compute what their classes are known for.

    Their classes and methods ``forward`` are PyTorch's or come from the Python modules or packages
    ``sources``, and no instance has a ``forward`` of its own, except for checkpoints of submodules.
    Names that end with a dot are packages, and stand only for the modules inside. Modules in
    TorchScript have no such methods: they are not known, unless the package generates code of its
    own for submodules, as e3nn does for tensor products.
    """
    modules = list(module.modules())
    if generates_code:
        modules = [module, *(m for m in modules[1:] if not isinstance(m, GENERATED))]
    if any(isinstance(each, torch.jit.ScriptModule) for each in modules):
        return False
    packages = tuple(f"{source.removesuffix('.')}." for source in ("torch.nn.modules", *sources))
    kinds: set[Any] = set(map(type, modules))
    origins = [made.__module__ for kind in kinds for made in (kind, kind.forward)]
    is_known = all(o in sources or o.startswith(packages) for o in origins)
    foreign = [each for each in modules if has_foreign_forward(each)]
    return is_known and all(each is not module and is_checkpointed(each) for each in foreign)


def children(kinds: Mapping[str, str]) -> Children:
    """Return the classes of submodules.

    Parameters
    ----------
    kinds : mapping of str to str
        Names of submodules, separated by spaces, for each class. Alternative classes are also
        separated by spaces; one of them may be `OPTIONAL`.
    """
    return {
        name: frozenset(classes.split())
        for classes, names in kinds.items()
        for name in names.split()
    }


def has_structure(module: nn.Module, known: Mapping[str, Children]) -> bool:
    """Return True if all submodules have the submodules expected for their classes.

    Classes that are not known must not have any.
    """
    return all(has_children(part, known.get(type(part).__name__, {})) for part in module.modules())


def has_children(module: nn.Module, expected: Children) -> bool:
    """Return True if a module has exactly the expected submodules."""
    found = {name: type(child).__name__ for name, child in module.named_children()}
    names: Iterable[str] = found.keys() | expected.keys()
    return all(found.get(name, OPTIONAL) in expected.get(name, ()) for name in names)


def has_foreign_forward(module: nn.Module) -> bool:
    """Return True if other code has set ``forward`` on the instance without wrapping ours."""
    is_ours = isinstance(vars(module).get("forward"), Replacement)
    return has_other_forward(module) and not is_ours and replacement_of(module) is None
