"""Base class of the callables that replace a module's ``forward`` and can fall back on it."""

from __future__ import annotations

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from mlff_triton._common.devices import dtype_name
from mlff_triton.bio.core.contexts import unsupported_context
from mlff_triton.bio.core.plain_tensors import weights_obstacle
from mlff_triton.bio.core.replacement import Replacement, is_recording
from mlff_triton.bio.core.settings import Settings
from mlff_triton.bio.core.snapshot import Snapshot
from mlff_triton.errors import InputError

Weights = TypeVar("Weights")
Result = TypeVar("Result")

PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

GRADIENTS_REQUIRED = "gradients are required; call the model under torch.inference_mode()"


class Options(NamedTuple):
    """Options of `mlff_triton.bio.accelerate`, which documents them."""

    precision: str | None = None
    cuda_graph: bool | str = "auto"
    backend: str = "auto"

    def captures(self, backend: str | None, module: nn.Module) -> bool:
        """Return True if a backend's computation of a module may be captured in CUDA graphs."""
        on_gpu = next(module.parameters()).is_cuda
        return on_gpu and backend == "triton" and bool(self.cuda_graph)


@dataclass(frozen=True)
class Reading(Generic[Weights]):
    """Weights of a module in one state and dtype, or the reason why kernels do not support them."""

    snapshot: Snapshot
    dtype: torch.dtype
    weights: Weights | None
    refusal: str | None = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Copy and pickle as None: copies of modules read their own weights."""
        return type(None), ()


class FallbackWarning(UserWarning):
    """An accelerated module ran its original ``forward``; the message says why."""


class FastForward(Replacement, Generic[Weights]):
    """Replacement of ``forward`` by kernels, or by the same computation in PyTorch.

    Copies do not include the weights that it has read. It reads them again whenever a parameter has
    changed, as far as `Snapshot` notices, after every forward in training mode, and after
    `refresh`. While PyTorch records a model's computation, it acts as the original ``forward``.

    Parameters
    ----------
    module : torch.nn.Module
        Module whose ``forward`` is replaced.
    options : Options
        Options chosen by the user.
    model : torch.nn.Module, optional
        Whole model that contains the module; by default the module itself.

    Attributes
    ----------
    set_aside : str or None
        Reason to run the original ``forward`` for now.
    """

    supported: ClassVar[str]
    """Short description of the supported models, for error messages."""

    announces: ClassVar[bool] = True
    """If False, fallbacks give no warning, because another adapter of the same model warns."""

    zeroes_padding: ClassVar[bool] = False
    """If True, outputs at padding are zero instead of those of the original ``forward``."""

    watches: ClassVar[tuple[str, ...]] = ()
    """Names of the plain attributes of modules that `read` depends on. They may change."""

    watches_all: ClassVar[bool] = False
    """If True, `read` depends on every plain attribute, so that each of them may change."""

    def __init__(self, module: nn.Module, options: Options, model: nn.Module | None = None) -> None:
        del model
        super().__init__(module)
        self.options = options
        self.set_aside: str | None = None
        self.fallback_reasons: list[str] = []
        parameters = inspect.signature(type(module).forward).parameters
        self._names = tuple(parameters)[1:]
        self._reading: Reading[Weights] | None = None
        self._settings = Settings(module, self.watches)

    @classmethod
    @abstractmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True if this class can replace the module's ``forward``."""

    @abstractmethod
    def read(self) -> Weights:
        """Read the weights from the module's present parameters.

        Raises
        ------
        InputError
            If kernels do not support the weights, so that the original ``forward`` must run until
            they change.
        """

    @abstractmethod
    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the reason why the arguments are not supported, or None if they are."""

    @abstractmethod
    def compute(self, arguments: Mapping[str, Any], begun: Any) -> Any:
        """Return what ``forward`` returns for named arguments that have no `refusal`.

        ``begun`` is the result of `begin`, or None if the weights have changed since.
        """

    def begin(self, arguments: Mapping[str, Any]) -> Any:
        """Launch the likely computation, so that the GPU works while the checks run.

        The arguments are not checked yet: they may be of any type and may be refused afterwards.
        """
        del arguments

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module's original ``forward`` would return."""
        return self.serve(self.compute, self.original, args, kwargs)

    def serve(
        self,
        fast: Callable[[Mapping[str, Any], Any], Result],
        slow: Callable[..., Result],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        names: Sequence[str] = (),
    ) -> Result:
        """Call ``fast(named arguments, result of begin)`` if possible, else ``slow``.

        The names of all arguments are by default those of ``forward``.
        """
        if is_recording() or self.is_undone:
            return slow(*args, **kwargs)
        arguments = dict(zip(names or self._names, args, strict=False)) | dict(kwargs)
        if self.options.backend == "auto" and not _on_gpu(arguments.values(), self.module):
            return slow(*args, **kwargs)
        reason = self._unsupported_mode(arguments) or self.set_aside
        if self.module.training:
            self.refresh()  # training may write to ``parameter.data``, which is not counted
        if reason is None:
            with torch.no_grad():
                before = self._reading
                begun = self.begin(arguments) if before and before.refusal is None else None
                reason = self.refusal(arguments) or self._update()
                if reason is None:
                    return fast(arguments, begun if self._reading is before else None)
        self._announce(reason)
        return slow(*args, **kwargs)

    def replicate(self) -> nn.Module:
        """Return a copy of the module for `torch.nn.DataParallel`, with the original ``forward``.

        Weights would have to be read again in every forward pass.
        """
        self._announce(
            "torch.nn.DataParallel makes new replicas in every call; use one process per GPU"
        )
        return super().replicate()

    def _announce(self, reason: str) -> None:
        """Warn about a fallback, unless its reason is known."""
        if reason in self.fallback_reasons:
            return
        self.fallback_reasons.append(reason)
        if self.announces:
            name = type(self.module).__name__
            message = f"{name} runs its original forward: {reason}"
            warnings.warn(message, FallbackWarning, stacklevel=4)

    def _update(self) -> str | None:
        """Read the weights if they have changed; return the reason why kernels cannot use them."""
        if self._reading is None or not self._is_current(self._reading):
            self._reading = None
            obstacle = self._read_again()
            if obstacle is not None:
                return obstacle
        assert self._reading is not None
        return self._reading.refusal

    def _read_again(self) -> str | None:
        """Read the weights; return the reason why that is not possible, if there is one."""
        if len({p.device for p in self.module.parameters()}) != 1:
            return "its parameters are on several devices"
        obstacle = weights_obstacle(self.module)
        if obstacle is not None:
            return obstacle
        if self.backend is None:
            return "its parameters are on a CPU, but its inputs are on a GPU"
        snapshot = Snapshot(self.module, self.watches)
        if snapshot.obstacle is not None:
            return snapshot.obstacle
        changed = None if self.watches_all else self._settings.change(self.module)
        if changed is not None:
            return f"its attribute {changed} has changed since bio.accelerate was called"
        if not self.fits(self.module):
            return "its structure has changed since bio.accelerate was called"
        try:
            self._reading = Reading(snapshot, self.dtype, self.read())
        except InputError as error:
            self._reading = Reading(snapshot, self.dtype, None, str(error))
        return None

    def _is_current(self, reading: Reading[Weights]) -> bool:
        """Return True if neither the weights nor the dtype have changed since they were read."""
        return reading.dtype == self.dtype and reading.snapshot.is_current()

    def refresh(self) -> None:
        """Forget the weights, so that the next call reads them again."""
        self._reading = None

    @property
    def weights(self) -> Weights:
        """Weights that `read` returned last."""
        assert self._reading is not None
        assert self._reading.weights is not None
        return self._reading.weights

    @property
    def parameter(self) -> nn.Parameter:
        """First parameter of the module; its device and dtype stand for all parameters."""
        found = _first_parameter(self.module)
        assert found is not None
        return found

    @property
    def backend(self) -> str | None:
        """Backend on the module's device: "triton", "torch", or None for the original forward."""
        if self.options.backend != "auto":
            return self.options.backend
        first = _first_parameter(self.module)
        return "triton" if first is not None and first.is_cuda else None

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the computation."""
        own = self.parameter.dtype
        chosen = None if self.backend is None else self.options.precision
        return own if chosen is None else PRECISIONS[chosen]

    @property
    def state(self) -> str:
        """State for reports: "fast", or the reasons why the original ``forward`` ran."""
        if self.backend is None:
            return "inactive until the model is on a GPU"
        if self.fallback_reasons:
            return f"fast; fell back because {'; because '.join(self.fallback_reasons)}"
        return "fast"

    def describe(self) -> str:
        """Return the backend and the dtype, for reports."""
        backends = {"triton": "Triton kernels", "torch": "PyTorch", None: "original forward"}
        return f"{backends[self.backend]}, {dtype_name(self.dtype)}"

    def _unsupported_mode(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the mode of the module or of PyTorch that only the original forward supports."""
        module = self.module
        if module.training:
            return "the module is in training mode; call model.eval()"
        if _first_parameter(module) is None:
            return "it has no parameters of its own, which others may keep"
        if torch.is_grad_enabled():
            tensors = (x for x in arguments.values() if isinstance(x, torch.Tensor))
            if any(x.requires_grad for x in (*module.parameters(), *tensors)):
                return GRADIENTS_REQUIRED
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            return "autocast is enabled; use the precision option of bio.accelerate instead"
        return unsupported_context(arguments.values())


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """Return the first parameter, five times as fast as ``module.parameters()``."""
    for own in module._parameters.values():
        if own is not None:
            return own
    for child in module._modules.values():
        found = None if child is None else _first_parameter(child)
        if found is not None:
            return found
    return None


def _on_gpu(values: Iterable[object], module: nn.Module) -> bool:
    """Return True if any tensor is on a GPU, or the module is and there are no tensors."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return any(tensor.is_cuda for tensor in tensors or islice(module.parameters(), 1))
