"""Small networks from hidden values to the energies of atoms, in PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet.reference.readout`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.activations import activate, activate_backward
from mlff_triton.kernels.common.cpu.rows import over_rows
from mlff_triton.kernels.numerics.split import SplitWeight
from mlff_triton.kernels.tensornet.reference import readout as reference

Head = Callable[[Tensor], tuple[Tensor, Tensor]]


def scalar_head(
    hidden: Tensor,
    weight1: SplitWeight,
    bias1: Tensor,
    adjoint1: SplitWeight,
    weight2: Tensor,
    bias2: Tensor,
    first: str,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Compute the energies [N] of atoms, and their gradients [N, F]."""

    def head(rows: Tensor) -> tuple[Tensor, Tensor]:
        u = torch.addmm(bias1, activate(rows, first), weight1.weight.T)
        energies = activate(u, activation) @ weight2 + bias2
        grad = activate_backward(weight2.expand_as(u), u, activation) @ adjoint1.weight.T
        return energies, grad if first == "none" else activate_backward(grad, rows, first)

    return _by_blocks(head, hidden)


def gated_head(
    hidden: Tensor,
    values: Sequence[tuple[Tensor, Tensor]],
    gates: Sequence[tuple[Tensor, Tensor]],
    scale: float,
    first: str,
) -> tuple[Tensor, Tensor]:
    """Compute energies [N] by one network times the sigmoid of another, and gradients [N, F]."""
    return _by_blocks(lambda x: reference.gated_head(x, values, gates, scale, first), hidden)


def deep_head(
    hidden: Tensor, maps: Sequence[tuple[Tensor, Tensor]], first: str, activation: str
) -> tuple[Tensor, Tensor]:
    """Compute energies [N] by a network of any depth, and their gradients [N, F]."""
    return _by_blocks(lambda x: reference.deep_head(x, maps, first, activation), hidden)


def _by_blocks(head: Head, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a head to hidden values [N, F], block by block."""
    energies, grad = hidden.new_empty(len(hidden)), torch.empty_like(hidden)

    def compute(first: int, last: int) -> None:
        energies[first:last], grad[first:last] = head(hidden[first:last])

    over_rows(compute, len(hidden))
    return energies, grad
