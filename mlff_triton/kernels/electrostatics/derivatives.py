"""Derivatives of energies whose gradients are computed with them.

Operators here take charges, positions and cells first, and return the energy of each system with
its gradients by these three. So the first derivative only scales gradients. That of the gradients
comes from the reference in plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.kernels.common.operators import operator
from mlff_triton.kernels.electrostatics.types import Electrostatics

COLUMNS = 10
"""Sums of an atom, which kernels store in float64: its energy, and the gradient of the cell."""


class EnergyGradients(NamedTuple):
    """Energies of systems and their gradients.

    Attributes
    ----------
    energy : float64 [B]
        eV.
    charges : [N]
        Potential at each atom, V.
    positions : [N, 3]
        eV/Å.
    cell : [B, 3, 3]
        At fixed positions, eV/Å.
    """

    energy: Tensor
    charges: Tensor
    positions: Tensor
    cell: Tensor


def empty_gradients(charges: Tensor, positions: Tensor, cell: Tensor) -> EnergyGradients:
    """Allocate results."""
    return EnergyGradients(
        cell.new_empty(len(cell), dtype=torch.float64),
        charges.new_empty(charges.shape),
        positions.new_empty(positions.shape),
        cell.new_empty(cell.shape),
    )


def energy_operator(
    name: str, reference: Callable[..., Electrostatics]
) -> Callable[[Callable[..., Any]], Any]:
    """Register a launcher that returns `EnergyGradients` as a custom operator.

    Parameters
    ----------
    name : str
        Name of the operator.
    reference : callable
        Differentiable function of the same arguments. The launcher takes the system of each atom,
        int [N], as its fourth.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.set_materialize_grads(False)
        is_tensor = [isinstance(each, Tensor) for each in inputs]
        tensors = [each for each, yes in zip(inputs, is_tensor, strict=True) if yes]
        ctx.is_tensor, ctx.n_tensors = is_tensor, len(tensors)
        ctx.others = [each for each, yes in zip(inputs, is_tensor, strict=True) if not yes]
        ctx.save_for_backward(*tensors, *output[1:])

    def differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, gradients = ctx.saved_tensors[: ctx.n_tensors], ctx.saved_tensors[ctx.n_tensors :]
        of_energy = grads[0]
        if of_energy is not None and all(grad is None for grad in grads[1:]):
            return _scaled(of_energy, tensors[3], gradients)
        sources = iter(tensors), iter(ctx.others)
        inputs = [next(sources[0] if yes else sources[1]) for yes in ctx.is_tensor]
        return _through_gradients(reference, inputs, grads)

    return operator(
        name,
        outputs=lambda *inputs: tuple(empty_gradients(*inputs[:3])),
        differentiate=differentiate,
        saves=save,
    )


def _scaled(grad: Tensor, system: Tensor, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return gradients of the energies, times one factor per system."""
    by_charge, by_position, by_cell = gradients
    of_atom = grad[system.long()]
    return (
        (of_atom * by_charge).to(by_charge.dtype),
        (of_atom[:, None] * by_position).to(by_position.dtype),
        (grad[:, None, None] * by_cell).to(by_cell.dtype),
    )


def _through_gradients(
    reference: Callable[..., Electrostatics], inputs: list[Any], grads: tuple[Tensor | None, ...]
) -> tuple[Tensor, ...]:
    """Differentiate energies and their gradients, by the reference."""
    others = inputs[3:]

    def energies(*leaves: Tensor) -> Tensor:
        return reference(*leaves, *others).energy

    def outputs(*leaves: Tensor) -> tuple[Tensor, ...]:
        energy, pull_back = torch.func.vjp(energies, *leaves)[:2]
        return energy, *pull_back(torch.ones_like(energy))

    values, pull_back = torch.func.vjp(outputs, *inputs[:3])[:2]
    pairs = zip(grads, values, strict=True)
    found: tuple[Tensor, ...] = pull_back(
        tuple(torch.zeros_like(value) if grad is None else grad for grad, value in pairs)
    )
    return found
