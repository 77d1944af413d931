"""Snapshots of modules, to detect changes after weights were read from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter, eq, is_
from typing import Any

from torch import Tensor, nn

# Transformers 5 leaves these hooks on a model. They record outputs only when asked to.
INERT_HOOKS = "transformers.utils.output_capturing"


class Snapshot:
    """Parameters, buffers, submodules and hooks of a module at one point in time.

    The comparison runs in every forward pass, so the constructor does all lookups that it can. The
    snapshot keeps the memory of the tensors alive, so that no later tensor can get the same
    address.

    Parameters
    ----------
    module : torch.nn.Module
        Module in its present state.
    """

    def __init__(self, module: nn.Module) -> None:
        modules = list(module.modules())
        self._containers = [
            members for m in modules for members in (m._modules, m._parameters, m._buffers)
        ]
        self._containers = [members for members in self._containers if members]
        self._hooks = _hooks(modules[1:])
        self._members = list(self._current_members())
        tensors = (*module.parameters(), *module.buffers())
        self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]
        self._memory = [tensor.detach() for tensor in tensors]
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        self._version = self._total_version()

    @property
    def hooked(self) -> bool:
        """True if a submodule has hooks."""
        return any(self._hooks) and _any_active(self._hooks)

    def is_current(self) -> bool:
        """Return True if nothing in the module was changed, replaced or hooked since."""
        return (
            not self.hooked
            and all(map(is_, self._current_members(), self._members))
            and self._total_version() == self._version
            and all(map(eq, map(Tensor.data_ptr, self._tensors), self._addresses))
        )

    def _current_members(self) -> Iterator[object]:
        return chain.from_iterable([members.values() for members in self._containers])

    def _total_version(self) -> int:
        """Sum the counters of changes in place, which only grow."""
        return sum(map(attrgetter("_version"), self._tensors))


def are_hooked(modules: Iterable[nn.Module]) -> bool:
    """Return True if any of the modules, not counting submodules, has hooks."""
    return _any_active(_hooks(modules))


def _hooks(modules: Iterable[nn.Module]) -> list[dict[int, Any]]:
    return [hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks)]


def _any_active(hooks: list[dict[int, Any]]) -> bool:
    return any(hook.__module__ != INERT_HOOKS for each in hooks for hook in each.values())
