"""Operators of a backend on pairs and tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from mlff_triton.bio.core.operators import import_operators

_MODULES = {  # of operators that do not have one of their own name
    "triangle_multiplication_": "triangle_multiplication",
    "triangle_attention_": "attention_update",
    "token_attention_": "attention_update",
    "pair_biases": "attention_update",
    "transition_": "transition",
    "pair_average_": "pair_average",
    "outer_product_mean_": "outer_product_mean",
    "conditioned_attention_": "conditioning",
    "conditioned_transition_": "conditioning",
    "conditioned_windows_": "conditioning",
    "conditioned_layers_": "conditioning",
    "linear_map": "split_linear",
}


class Operators(NamedTuple):
    """Operators of `mlff_triton.kernels.pairs`, by name."""

    triangle_multiplication_: Callable[..., Tensor]
    triangle_attention_: Callable[..., Tensor]
    token_attention_: Callable[..., Tensor]
    pair_biases: Callable[..., Tensor]
    transition_: Callable[..., Tensor]
    pair_average_: Callable[..., Tensor]
    outer_product_mean_: Callable[..., Tensor]
    conditioned_attention_: Callable[..., Tensor]
    conditioned_transition_: Callable[..., Tensor]
    conditioned_windows_: Callable[..., Tensor]
    conditioned_layers_: Callable[..., Tensor]
    linear_map: Callable[..., Tensor]

    @classmethod
    def of(cls, backend: str | None) -> Operators:
        """Import the operators of "triton" or "torch"."""
        return cls(**import_operators("pairs", backend, cls._fields, _MODULES))
