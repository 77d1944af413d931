"""Whether a module is still the one that something was worked out for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter, eq, is_
from typing import Any

from torch import Tensor, nn

# Transformers 5 leaves these on a model for good; they do nothing unless it collects what they see.
HARMLESS = "transformers.utils.output_capturing"


class State:
    """Parameters, buffers, submodules and hooks of a module.

    This is compared in every call, so all that can be is looked up beforehand. Memory of parameters
    is held, so that other parameters cannot come to lie at the same address.

    Parameters
    ----------
    module : torch.nn.Module
        As it is now.
    """

    def __init__(self, module: nn.Module) -> None:
        modules = list(module.modules())
        self._places = [
            place for m in modules for place in (m._modules, m._parameters, m._buffers) if place
        ]
        self._hooks = _hooks(modules[1:])
        self._parts = list(self._found())
        named = (*module.parameters(), *module.buffers())
        self._tensors = [tensor for tensor in named if not tensor.is_inference()]
        self._memory = [tensor.detach() for tensor in named]
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        self._versions = self._changes()

    @property
    def hooked(self) -> bool:
        """Whether a submodule has hooks."""
        return any(self._hooks) and _do_something(self._hooks)

    def holds(self) -> bool:
        """Whether nothing was changed, replaced or hooked."""
        return (
            not self.hooked
            and all(map(is_, self._found(), self._parts))
            and self._changes() == self._versions
            and all(map(eq, map(Tensor.data_ptr, self._tensors), self._addresses))
        )

    def _found(self) -> Iterator[object]:
        return chain.from_iterable([place.values() for place in self._places])

    def _changes(self) -> int:
        """How often tensors were changed in place; versions only grow."""
        return sum(map(attrgetter("_version"), self._tensors))


def are_hooked(modules: Iterable[nn.Module]) -> bool:
    """Whether one of these modules has hooks itself."""
    return _do_something(_hooks(modules))


def _hooks(modules: Iterable[nn.Module]) -> list[dict[int, Any]]:
    return [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]


def _do_something(hooks: list[dict[int, Any]]) -> bool:
    return any(hook.__module__ != HARMLESS for each in hooks for hook in each.values())
