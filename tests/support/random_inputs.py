"""Random inputs of the engine's operators, and comparisons with the references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.testing import assert_close

KNOTS = 6
GROUPS = ("O(3)", "SO(3)", "none")
ACTIVATIONS = ("silu", "swish", "ssp", "tanh", "sigmoid", "mish")
LARGE = 9, 3000
"""Numbers of atoms to test repeatability with: under the interpreter, and on a GPU."""


def numbers(*shape: int) -> Tensor:
    """Return random float64 values that are exact in float32, for tests in both dtypes."""
    return torch.randn(shape).double()


def weights(*shape: int) -> SplitWeight:
    """Return random maps [..., out, in] that preserve the scale of their input."""
    return SplitWeight.of((numbers(*shape) / shape[-1] ** 0.5).float().double())


def charge_factors(n_atoms: int) -> Tensor:
    """Return ``1 + 0.1 q`` [N] for random charges q."""
    return (1 + 0.1 * torch.randint(-3, 4, (n_atoms,))).float().double()


def random_edges(n_atoms: int, layout: str = "csr", neighbors: int = 5) -> Edges:
    """Return edges between random atoms; the last atom has none.

    The layout is "csr", without gaps, or "rows", a neighbor matrix. In a matrix, edges lie in
    other slots than their origins, and unused slots are poisoned.
    """
    linked = torch.rand(n_atoms, n_atoms) < 0.5 * neighbors / n_atoms
    linked = (linked | linked.T).fill_diagonal_(False)
    linked[-1] = linked[:, -1] = False
    receivers, senders = linked.nonzero(as_tuple=True)
    number = torch.full((n_atoms, n_atoms), -1)
    number[receivers, senders] = torch.arange(len(senders))
    count = linked.sum(1)
    begin = count.cumsum(0) - count
    index = torch.arange(len(senders))
    reverse = number[senders, receivers]
    pair = torch.minimum(index, reverse)
    direction = numbers(3, len(senders))[:, pair] * (1 - 2 * (pair < index).double())
    edges = Edges(
        slot_begin=begin.int(),
        slot_end=(begin + count).int(),
        senders=senders.int(),
        origin=index.int(),
        reverse=reverse.int(),
        interval=torch.randint(KNOTS, senders.shape)[pair].int(),
        fraction=torch.rand(len(senders)).double()[pair],
        width=(0.1 + torch.rand(len(senders))).double()[pair],
        direction=direction / direction.norm(dim=0),
        distance=(1 + torch.rand(len(senders))).double()[pair],
    )
    return edges if layout == "csr" else _in_rows(edges, count, receivers)


def _in_rows(edges: Edges, count: Tensor, receivers: Tensor) -> Edges:
    """Move CSR edges into a neighbor matrix."""
    capacity = int(count.max()) + 2
    rank = torch.arange(len(receivers)) - edges.slot_begin[receivers]
    slot = receivers * capacity + rank
    origin = (slot + (rank >= 1)).int()  # a neighbor between them has left the cutoff

    def spread(values: Tensor, index: Tensor = slot) -> Tensor:
        poison = torch.nan if values.is_floating_point() else torch.iinfo(values.dtype).max
        out = values.new_full((*values.shape[:-1], len(count) * capacity), poison)
        out[..., index.long()] = values
        return out

    begin = torch.arange(len(count)).int() * capacity
    return Edges(
        slot_begin=begin,
        slot_end=begin + count.int(),
        senders=spread(edges.senders),
        origin=spread(origin),
        reverse=spread(origin[edges.reverse.long()], origin),
        interval=spread(edges.interval),
        fraction=spread(edges.fraction),
        width=spread(edges.width),
        direction=spread(edges.direction),
        distance=spread(edges.distance),
    )


def at_origins(values: Tensor, edges: Edges) -> Tensor:
    """Return the values of all edges in their order, from values [..., slots] at origins."""
    slots, _ = edges.live()
    return values[..., edges.origin[slots].long()]


def moved(value: Any, device: str, dtype: torch.dtype) -> Any:
    """Move tensors, also in tuples, to a device; cast floating-point tensors to a dtype."""
    if isinstance(value, Edges):
        return Edges(*(moved(v, device, dtype) for v in value))
    if isinstance(value, SplitWeight):
        return SplitWeight.of(moved(value.weight, device, dtype))
    if isinstance(value, list | tuple):
        return [moved(v, device, dtype) for v in value]
    if not isinstance(value, Tensor):
        return value
    return value.to(device, dtype if value.is_floating_point() else value.dtype)


def assert_matches(
    operator: Callable[..., Any],
    reference: Callable[..., Any],
    inputs: tuple[object, ...],
    device: str,
    dtype: torch.dtype,
    order: int,
) -> None:
    """Assert that an operator agrees with its reference in float64."""
    outputs = as_tuple(operator(*moved(inputs, device, dtype)))
    expected = as_tuple(reference(*moved(inputs, "cpu", torch.float64)))
    for actual, truth in zip(outputs, expected, strict=True):
        assert actual.dtype == dtype
        assert_close(actual, truth, order, dtype)


def assert_repeats(
    operator: Callable[..., Any], inputs: tuple[object, ...], device: str, dtype: torch.dtype
) -> None:
    """Assert that two runs return the same bits."""
    first, second = (as_tuple(operator(*moved(inputs, device, dtype))) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


def as_tuple(outputs: Any) -> tuple[Tensor, ...]:
    """Return all results of an operator, without those that were not asked for."""
    given = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(result for result in given if result is not None)
