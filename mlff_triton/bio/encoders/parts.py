"""Parts of Transformer encoders that take every row for itself, whatever the model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from mlff_triton.bio.encoders.encoder import Linear, Norm
from mlff_triton.bio.encoders.structure import chain, is_norm
from mlff_triton.bio.forward import FastForward, Weights
from mlff_triton.kernels.common.reference import activations

Steps: TypeAlias = list[tuple[Norm | Linear, str]]


class Operators(NamedTuple):
    """What a backend computes with."""

    layer_norm: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    attention: Callable[..., Tensor]

    @classmethod
    def of(cls, backend: str | None) -> Operators:
        """Those of "triton" or "torch"."""
        package = "mlff_triton.kernels.ops" + (".reference" if backend == "torch" else "")
        return cls(*(getattr(import_module(f"{package}.{name}"), name) for name in cls._fields))


class Motif(FastForward[Weights | None]):
    """A part that takes a tensor [..., C], its first argument.

    There are no weights if it was made into something else after it was replaced, as fine-tuning
    may do. Then it computes as it is.
    """

    module: Any  # of a known structure

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """The tensor must be like the parameters, and need no gradients."""
        x, own = arguments.get(self._names[0]), next(self.module.parameters())
        if not isinstance(x, Tensor) or x.is_nested:
            return "its input is no dense tensor"
        if x.dtype != own.dtype:
            return f"its input is {x.dtype}, and its parameters are {own.dtype}"
        if torch.is_grad_enabled() and x.requires_grad:
            return "gradients are wanted: compute within torch.inference_mode()"
        return None

    def read(self) -> Weights | None:
        """What `collect` finds."""
        return self.collect() if self.fits(self.module) else None

    @abstractmethod
    def collect(self) -> Weights:
        """The weights of now."""

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Any:
        """What `run` makes of the tensor."""
        del begun
        weights = self.weights
        if weights is None:
            return self.original(**arguments)
        return self.run(weights, arguments[self._names[0]], arguments)

    @abstractmethod
    def run(self, weights: Weights, x: Tensor, arguments: Mapping[str, Any]) -> Any:
        """What ``forward`` returns."""

    @property
    def operators(self) -> Operators:
        """What to compute with now."""
        return Operators.of(self.backend)


class LayerNormForward(Motif[Norm]):
    """Normalization over the last axis."""

    supported = "torch.nn.LayerNorm"

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether it is one."""
        return is_norm(module)

    @property
    def dtype(self) -> torch.dtype:
        """That of the parameters: converting what goes through takes longer than it saves."""
        dtype: torch.dtype = self.module.weight.dtype
        return dtype

    def collect(self) -> Norm:
        """Weight, bias and eps."""
        return Norm.of(self.module)

    def run(self, weights: Norm, x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """Normalized rows."""
        del arguments
        return self.operators.layer_norm(x, *weights)


class ChainForward(Motif[Steps]):
    """Two linear maps, and what is usual between them."""

    supported = "networks of two linear maps"

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether it is nothing but a chain of these, whatever the names in it."""
        return chain(module) is not None

    def collect(self) -> Steps:
        """Normalizations and linear maps, and the activations after them."""
        steps: list[tuple[Any, str]] = chain(self.module) or []
        return [
            ((Norm if is_norm(part) else Linear).of(part).to(self.dtype), activation)
            for part, activation in steps
        ]

    def run(self, weights: Steps, x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """What comes out of the last of them."""
        del arguments
        dtype, x, operators = x.dtype, x.to(self.dtype), self.operators
        for part, activation in weights:
            if isinstance(part, Linear):
                x = operators.linear(x, *part, activation)
            else:
                x = activations.activate(operators.layer_norm(x, *part), activation)
        return x.to(dtype)
