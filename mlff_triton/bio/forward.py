"""What a module's ``forward`` becomes: a fast one, with the module's own to fall back on."""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from mlff_triton._common.availability import check_triton
from mlff_triton.bio.state import State

Weights = TypeVar("Weights")
Result = TypeVar("Result")

PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
BACKENDS = ("auto", "triton", "torch")


class Options(NamedTuple):
    """What `mlff_triton.bio.accelerate` was asked for, and for what.

    ``first_token`` says that the model looks at the first token of each sequence by itself.
    """

    precision: str | None = None
    cuda_graph: bool | str = "auto"
    backend: str = "auto"
    first_token: bool = False


class FallbackWarning(UserWarning):
    """A module computed with its own ``forward``."""


class FastForward(ABC, Generic[Weights]):
    """A callable to be an instance's attribute ``forward``, which hides its class's.

    It is copied and pickled with the instance, and then belongs to the copy. What it works out from
    the parameters is not, and is worked out anew when one of them has changed.

    Parameters
    ----------
    module : torch.nn.Module
        Whose ``forward`` it is to be.
    options : Options
        Of the user.
    """

    supported: ClassVar[str]
    """The models that it is for, in a few words."""

    announces: ClassVar[bool] = True
    """Whether it warns; parts of models that another adapter warns for do not."""

    def __init__(self, module: nn.Module, options: Options) -> None:
        self.module: Any = module  # with submodules that only adapters know
        self.options = options
        self.before = module.__dict__.get("forward")
        self.fell_back: list[str] = []
        own = inspect.signature(type(module).forward).parameters
        self._names = tuple(own)[1:]
        self._known: tuple[State, Weights] | None = None

    @classmethod
    @abstractmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether a module is of the kind that this is for."""

    @abstractmethod
    def read(self) -> Weights:
        """What to compute with, of the parameters as they are now."""

    @abstractmethod
    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Why arguments are none that it can serve; None if it can."""

    @abstractmethod
    def compute(self, arguments: Mapping[str, Any], begun: Any) -> Any:
        """What ``forward`` returns for named arguments that have no `refusal`.

        ``begun`` is what `begin` returned, or None if that was for other weights.
        """

    def begin(self, arguments: Mapping[str, Any]) -> Any:
        """Launch what is likely to be right, so that the GPU works while all else is checked.

        The arguments are as they come: of any kind, and perhaps to be refused.
        """
        del arguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module's own ``forward`` would return."""
        return self.serve(self.compute, self.original, args, kwargs)

    def serve(
        self,
        fast: Callable[[Mapping[str, Any], Any], Result],
        slow: Callable[..., Result],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Result:
        """What ``fast`` makes of named arguments and what has begun, or ``slow`` if it must."""
        arguments = dict(zip(self._names, args, strict=False)) | dict(kwargs)
        if self.options.backend == "auto" and not any(map(_on_gpu, arguments.values())):
            return slow(*args, **kwargs)
        reason = self._mode(arguments)
        if reason is None:
            with torch.no_grad():
                begun = None if self._known is None else self.begin(arguments)
                reason = self.refusal(arguments)
                if reason is None and (self._known is None or not self._known[0].holds()):
                    self._known, begun = None, None
                    reason = self._learn()
                if reason is None:
                    return fast(arguments, begun)
        if reason not in self.fell_back:
            self.fell_back.append(reason)
            if self.announces:
                name = type(self.module).__name__
                warnings.warn(f"{name} computes as it is: {reason}", FallbackWarning, stacklevel=3)
        return slow(*args, **kwargs)

    def _learn(self) -> str | None:
        """Work out what to compute with; what is in the way of it if something is."""
        if len({p.device for p in self.module.parameters()}) != 1:
            return "its parameters lie on several devices"
        if self.backend is None:
            return "it lies on a CPU, and what it is given on a GPU"
        if not self.fits(self.module):
            return "its parts are others than they were"
        state = State(self.module)
        if state.hooked:
            return "a part of it has hooks, which would not be called"
        self._known = state, self.read()
        return None

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returned before."""
        if self.before is not None:
            return self.before(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def undo(self) -> None:
        """Give the module back the ``forward`` that it had."""
        if self.before is None:
            del self.module.forward
        else:
            self.module.forward = self.before

    @property
    def weights(self) -> Weights:
        """What `read` returned last."""
        assert self._known is not None
        return self._known[1]

    @property
    def backend(self) -> str | None:
        """What computes where the module is: "triton", "torch", or None for the module itself."""
        if self.options.backend != "auto":
            return self.options.backend
        first = next(self.module.parameters(), None)
        return "triton" if first is not None and first.is_cuda else None

    @property
    def dtype(self) -> torch.dtype:
        """What to compute in."""
        own = next(self.module.parameters()).dtype
        return own if self.options.precision is None else PRECISIONS[self.options.precision]

    @property
    def state(self) -> str:
        """Whether it is in use, or why its module's own ``forward`` is."""
        if self.backend is None:
            return "waits for a GPU"
        return f"fast, but: {'; '.join(self.fell_back)}" if self.fell_back else "fast"

    def describe(self) -> str:
        """What computes, in a few words."""
        how = {"triton": "Triton kernels", "torch": "PyTorch", None: "the module itself"}
        return f"{how[self.backend]}, {str(self.dtype).removeprefix('torch.')}"

    def _mode(self, arguments: Mapping[str, Any]) -> str | None:
        """What is in the way, whatever is asked for."""
        module = self.module
        if module.training:
            return "it is in training mode: call eval()"
        if torch.is_grad_enabled():
            given = (x for x in arguments.values() if isinstance(x, torch.Tensor))
            if any(x.requires_grad for x in (*module.parameters(), *given)):
                return "gradients are wanted: compute within torch.inference_mode()"
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            return "autocast is on: use precision instead"
        return None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known": None}


def _on_gpu(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda


def check_backend(backend: str, device: torch.device) -> None:
    """Raise a `BackendError` unless a back-end can compute on a device."""
    if backend == "torch" or (backend == "auto" and device.type != "cuda"):
        return
    check_triton(device)
