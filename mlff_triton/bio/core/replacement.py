"""Base class of the callables that replace a module's ``forward``.

A module remembers its replacement in an attribute of its own. So it is found again after other
packages have wrapped ``forward``, as Hugging Face's Accelerate does.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import nn

ATTRIBUTE = "_mlff_triton"
REPLICATE = "_replicate_for_data_parallel"  # a method that torch.nn.DataParallel calls


class Replacement(ABC):
    """Callable that is set as the attribute ``forward`` of a module and hides its class's method.

    It has the attributes of a bound method that PyTorch and other packages look for. It is copied
    and pickled with the module, and then belongs to the copy.

    Parameters
    ----------
    module : torch.nn.Module
        Module whose ``forward`` is replaced.

    Attributes
    ----------
    before : callable or None
        ``forward`` that somebody else has set on the module earlier.
    is_undone : bool
        True after `undo`. Others may still call the replacement, if they have wrapped it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module  # with submodules that only adapters know
        found = vars(module).get("forward")
        self.before: Callable[..., Any] | None = None if isinstance(found, Replacement) else found
        self.is_undone = False

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's original ``forward`` would return."""

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Call the ``forward`` that was replaced."""
        if self.before is not None:
            return self.before(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def install(self) -> None:
        """Replace the module's ``forward``."""
        self.is_undone = False
        self.module.forward = self
        setattr(self.module, ATTRIBUTE, self)
        setattr(self.module, REPLICATE, self.replicate)

    def undo(self, module: nn.Module | None = None) -> None:
        """Restore the module's own ``forward``, even inside wrappers of other packages.

        The module given may be a shallow copy.
        """
        self.is_undone = self.is_undone or module in (None, self.module)
        self._leave(self.module if module is None else module)

    def _leave(self, module: nn.Module) -> None:
        """Remove everything from a module that belongs to the replacement."""
        own = vars(module)
        if own.get("forward") is self:
            del own["forward"]
            if self.before is not None:
                own["forward"] = self.before
        del own[ATTRIBUTE], own[REPLICATE]

    @property
    def is_wrapped(self) -> bool:
        """True if somebody has wrapped the replacement since it was installed."""
        return vars(self.module).get("forward") is not self

    def replicate(self) -> nn.Module:
        """Return a copy of the module for `torch.nn.DataParallel`, with its own ``forward``.

        A copy gets its weights later, and is dropped after one forward pass.
        """
        replica: nn.Module = getattr(type(self.module), REPLICATE)(self.module)
        self._leave(replica)
        return replica

    @property
    def __signature__(self) -> inspect.Signature:
        """Signature of the module's own ``forward``, which some training loops inspect."""
        own = inspect.signature(type(self.module).forward)
        return own.replace(parameters=tuple(own.parameters.values())[1:])

    @property
    def __code__(self) -> CodeType:
        """Code of the module's own ``forward``, whose arguments `torch.export` looks up."""
        code: CodeType = type(self.module).forward.__code__
        return code

    @property
    def __self__(self) -> nn.Module:
        """Module, as for a bound method."""
        module: nn.Module = self.module
        return module

    @property
    def __func__(self) -> Callable[..., Any]:
        """Function of a module and its arguments, which others may wrap and bind to copies."""
        kind = type(self.module)

        @functools.wraps(kind.forward)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            replacement = replacement_of(module)
            if replacement is None:
                return kind.forward(module, *args, **kwargs)
            return replacement(*args, **kwargs)

        return forward


def replacement_of(module: nn.Module) -> Replacement | None:
    """Return the replacement of a module's ``forward``, or None."""
    found: Replacement | None = vars(module).get(ATTRIBUTE)
    return found


def is_recording() -> bool:
    """Return True while PyTorch records a model's computation, to compile or export it."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()
