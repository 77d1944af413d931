"""Weights of linear maps, which compute in the dtype that they are given."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mlff_triton.bio.core.weights import exact
from mlff_triton.errors import InputError


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
