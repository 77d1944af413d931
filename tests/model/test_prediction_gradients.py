"""Gradients of predictions: by positions and cells, or none at all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton import neighbor_list, predict
from mlff_triton.model.prediction import Prediction
from mlff_triton.testing import random_crystal
from tests.support.tensornets import model_of

SMALL = {"num_layers": 1, "hidden_channels": 8, "num_rbf": 6}
ATOMS = random_crystal(5, "triclinic")
MODEL = model_of(**SMALL).double().requires_grad_(False)
NUMBERS = torch.tensor(ATOMS.numbers)
GRAPH = neighbor_list(ATOMS.positions, MODEL.cutoff, ATOMS.cell.array, True)


def predicted(positions: Tensor, cell: Tensor, *, create_graph: bool = True) -> Prediction:
    return predict(MODEL, NUMBERS, positions, GRAPH, cell=cell[None], create_graph=create_graph)


def inputs(*, requires_grad: bool = True) -> tuple[Tensor, Tensor]:
    positions, cell = torch.tensor(ATOMS.positions), torch.tensor(ATOMS.cell.array)
    return positions.requires_grad_(requires_grad), cell.requires_grad_(requires_grad)


def test_energies_have_gradients_by_positions():
    positions, cell = inputs()
    found = predicted(positions, cell)
    (gradient,) = torch.autograd.grad(found.energy.sum(), positions)
    torch.testing.assert_close(-gradient, found.forces.detach(), rtol=1e-10, atol=1e-12)


def test_all_results_have_the_gradients_of_finite_differences():
    """Forces and virials by positions and cell, as for phonons and elastic constants."""

    def results(positions: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        found = predicted(positions, cell)
        return found.energy, found.forces, found.virial, found.atom_energies

    assert torch.autograd.gradcheck(results, inputs(), fast_mode=True)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_results_require_gradients_exactly_if_there_are_any(create_graph, requires_grad):
    """The model is frozen, so that only positions and cell can have gradients."""
    found = predicted(*inputs(requires_grad=requires_grad), create_graph=create_graph)
    for name, tensor in found.tensors.items():
        assert tensor.requires_grad == (create_graph and requires_grad), name


def test_gradients_can_be_asked_for_where_a_caller_wants_none():
    with torch.no_grad():
        found = predicted(*inputs())
    assert found.energy.requires_grad
    assert found.forces.requires_grad


def test_results_do_not_depend_on_gradients():
    plain = predicted(*inputs(requires_grad=False), create_graph=False)
    for name, tensor in predicted(*inputs()).tensors.items():
        torch.testing.assert_close(tensor.detach(), plain.tensors[name], rtol=1e-12, atol=1e-12)
