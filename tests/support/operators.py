"""Comparison of an operator with its reference, up to second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mlff_triton.testing import assert_close

SIZES = [(0, 8), (1, 1), (63, 33), (500, 8), (20, 128)]  # N or E, and F

Outputs = tuple[Tensor, ...]


def assert_matches(
    operator: Callable[..., Any], reference: Callable[..., Any], *inputs: object
) -> None:
    """Assert that an operator and its derivatives agree with the reference in float64.

    Derivatives are taken with respect to all floating-point inputs.
    """
    dtype = next(a.dtype for a in inputs if is_float(a))
    outputs = derivatives(operator, inputs, dtype)
    expected = derivatives(reference, inputs, torch.float64)
    for order, pairs in enumerate(zip(outputs, expected, strict=True)):
        for actual, truth in zip(*pairs, strict=True):
            assert actual.dtype == dtype
            assert_close(actual, truth, order, dtype)


def derivatives(function: Callable[..., Any], inputs: tuple[object, ...], dtype: torch.dtype):
    """Return outputs, gradients and second derivatives, with the same weights in each call."""
    arguments = [a.detach().to(dtype).requires_grad_() if is_float(a) else a for a in inputs]
    leaves = [a for a in arguments if is_float(a)]
    outputs = _tuple(function(*arguments))
    weights = [w.requires_grad_() for w in _random_like(outputs, seed=1)]
    first = torch.autograd.grad(outputs, leaves, weights, create_graph=True)
    second = torch.autograd.grad(
        first, leaves + weights, _random_like(first, seed=2), materialize_grads=True
    )
    return outputs, first, second


def is_float(argument: object) -> bool:
    return isinstance(argument, Tensor) and argument.is_floating_point()


def _random_like(tensors: Outputs, seed: int) -> Outputs:
    random = torch.Generator().manual_seed(seed)
    numbers = [torch.randn(t.shape, generator=random, dtype=torch.float32) for t in tensors]
    return tuple(n.to(t) for n, t in zip(numbers, tensors, strict=True))


def _tuple(outputs: Any) -> Outputs:
    return outputs if isinstance(outputs, tuple) else (outputs,)
