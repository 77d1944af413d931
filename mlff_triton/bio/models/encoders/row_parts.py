"""Adapters for parts of encoders that act on each row by itself: layer norms and MLPs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import GRADIENTS_REQUIRED, FastForward, Reading, Weights
from mlff_triton.bio.core.operators import transformer_operators
from mlff_triton.bio.models.encoders.torch_modules import is_norm, python_state, trace_mlp
from mlff_triton.bio.models.encoders.weights import Linear, Norm
from mlff_triton.kernels.common.reference import activations
from mlff_triton.kernels.transformer.protocol import TransformerOperators

Steps: TypeAlias = list[tuple[Norm | Linear, str]]


class Traced(NamedTuple):
    """Steps of a traced module, and other state of its ``forward``, see `python_state`."""

    steps: Steps
    state: list[Any]


class PartForward(FastForward[Weights | None]):
    """Base class for parts whose first argument is a tensor [..., C].

    The weights are None if the part was changed into something else after it was replaced, as
    fine-tuning may do. It then runs its original forward.
    """

    module: Any  # of a known structure

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse inputs with a dtype other than the parameters', and inputs that need gradients."""
        x, own = arguments.get(self._names[0]), self.parameter
        if not isinstance(x, Tensor) or x.is_nested:
            return "its input is not a dense tensor"
        if x.dtype != own.dtype:
            return f"its input is {x.dtype}, but its parameters are {own.dtype}"
        if torch.is_grad_enabled() and x.requires_grad:
            return GRADIENTS_REQUIRED
        return None

    def read(self) -> Weights | None:
        """Read the weights, or return None if the module no longer fits."""
        return self.collect() if self.fits(self.module) else None

    @abstractmethod
    def collect(self) -> Weights:
        """Read the weights of a module that fits."""

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Any:
        """Call `run`, or the original forward if there are no weights."""
        del begun
        weights = self.weights
        if weights is None:
            return self.original(**arguments)
        return self.run(weights, arguments[self._names[0]], arguments)

    @abstractmethod
    def run(self, weights: Weights, x: Tensor, arguments: Mapping[str, Any]) -> Any:
        """Return what ``forward`` returns for its first argument ``x``."""

    @property
    def operators(self) -> TransformerOperators:
        """Operators of the present backend."""
        return transformer_operators(self.backend)


class LayerNormForward(PartForward[Norm]):
    """Layer normalization over the last axis."""

    supported = "torch.nn.LayerNorm"
    watches = ("eps",)

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a `torch.nn.LayerNorm` over the last axis, with weight and bias."""
        return is_norm(module)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters: converting the input would take longer than it saves."""
        dtype: torch.dtype = self.module.weight.dtype
        return dtype

    def collect(self) -> Norm:
        """Read weight, bias and eps."""
        return Norm.of(self.module)

    def run(self, weights: Norm, x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """Normalize rows."""
        del arguments
        return self.operators.layer_norm(x, *weights)


class MLPForward(PartForward[Traced]):
    """Two linear maps, with activations and normalizations between them."""

    supported = "networks of two linear maps"
    watches_all = True  # a trace has read them

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a chain of two linear maps, whatever the names of its submodules."""
        return trace_mlp(module) is not None

    def collect(self) -> Traced:
        """Read linear maps and normalizations, each with the activation that follows it."""
        steps: list[tuple[Any, str]] = trace_mlp(self.module) or []
        read = [
            ((Norm if is_norm(part) else Linear).of(part).to(self.dtype), activation)
            for part, activation in steps
        ]
        return Traced(read, python_state(self.module))

    def _is_current(self, reading: Reading[Traced | None]) -> bool:
        """Return True if a new trace would give the same steps and weights."""
        traced = reading.weights
        is_same = traced is None or traced.state == python_state(self.module)
        return is_same and super()._is_current(reading)

    def run(self, weights: Traced, x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """Apply all steps in order."""
        del arguments
        dtype, x, operators = x.dtype, x.to(self.dtype), self.operators
        for part, activation in weights.steps:
            if isinstance(part, Linear):
                x = operators.linear(x, *part, activation)
            else:
                x = activations.activate(operators.layer_norm(x, *part), activation)
        return x.to(dtype)
