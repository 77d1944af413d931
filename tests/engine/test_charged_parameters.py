"""A step of TensorNet2 with the parameters of a model, against the exact module."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.engine.charged_parameters import ChargedParameters
from mlff_triton.engine.charged_step import ChargedSystems, charged_energies_and_gradients
from mlff_triton.engine.parameters import Parameters
from mlff_triton.errors import UnsupportedModelError
from mlff_triton.kernels.tensornet.reference import operators as ops
from mlff_triton.kernels.tensornet2.reference import operators as charged
from mlff_triton.kernels.types.charges import AtomOrder
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.prediction import predict
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_close, random_cluster
from tests.support.charged import CUTOFF, charged_model

CPU = torch.device("cpu")
N_ATOMS, TOTAL = 7, torch.tensor([1.0]).double()
VARIANTS = {
    "all pairs": {},
    "reaction field": {"coulomb_cutoff": 4.5},
    "SO(3), two layers": {"group": "SO(3)", "num_layers": 2},
    "gauss, tanh": {"rbf_type": "gauss", "activation": "tanh"},
    "lower cutoff": {"cutoff_lower": 1.2},
    "more charges": {"charge_channels": 17},
}
REFUSED = {
    "no Coulomb energy": {"coulomb": False},
    "no self-loops": {"self_loops": False},
    "a gated head": {"head": "gated"},
    "hidden layers in its head": {"head_layers": 1},
}


def edges_within(cutoff: float, positions: Tensor, p: Parameters) -> Edges:
    graph = neighbor_list(positions.numpy(), cutoff)
    vectors = graph.vectors(positions, None, None)
    return Edges.of_graph(graph.row_ptr, graph.senders, graph.reverse, vectors, p.tables.knots)


@pytest.mark.parametrize("variant", VARIANTS)
def test_agrees_with_the_exact_module(variant):
    model = charged_model(**VARIANTS[variant]).requires_grad_(False)
    atoms = random_cluster(N_ATOMS, seed=4)
    atoms.set_atomic_numbers([1, 6, 7, 8, 1, 6, 1])
    positions = torch.from_numpy(atoms.positions)
    numbers = torch.from_numpy(atoms.numbers)
    graph = neighbor_list(atoms.positions, min(model.cutoff, 50.0))
    expected = predict(model, numbers, positions, graph, charge=TOTAL)

    base = Parameters.of_any(model, CPU, torch.float64)
    p = ChargedParameters.of(model, CPU, torch.float64)
    edges = edges_within(CUTOFF, positions, base)
    wide = edges_within(model.config.coulomb_cutoff or CUTOFF, positions, base)
    row = torch.arange(N_ATOMS).int()
    order = AtomOrder(row, torch.tensor([0, N_ATOMS]).int(), N_ATOMS)
    systems = ChargedSystems(base.species(numbers), torch.zeros_like(row), TOTAL, order)
    found = charged_energies_and_gradients(ops, charged, p, systems, edges, positions, wide)

    energies = found.energies + base.references[systems.species.long()]
    assert_close(energies.sum() + base.mean[0], expected.energy[0], 0)
    weights = model.charge_weights.flatten() / model.charge_weights.sum()
    assert_close(found.charges @ weights, expected.charges, 0, floor=1.0)
    forces = _forces(found.edge_grad, edges)
    of_coulomb = found.coulomb_grad
    forces += _forces(of_coulomb, wide) if model.config.coulomb_cutoff else -of_coulomb
    assert_close(forces, expected.forces, 1)


@pytest.mark.parametrize("reason", REFUSED)
def test_other_models_are_refused(reason):
    with pytest.raises(UnsupportedModelError, match=f"the model has {reason}: use backend='exact'"):
        ChargedParameters.of(charged_model(**REFUSED[reason]), CPU, torch.float64)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_weights_of_any_size_are_converted(scale):
    model = charged_model(torch.float32).requires_grad_(False)
    model.interactions[0].radial[1].weight *= scale
    network = ChargedParameters.of(model, CPU, torch.float32).interactions[0]
    assert network.second.dtype == (torch.float16 if scale == 1 else torch.float32)


def _forces(edge_grad: Tensor, edges: Edges) -> Tensor:
    """Return the forces [N, 3] of gradients along the edges."""
    energies = torch.zeros(N_ATOMS).double()
    order = torch.arange(N_ATOMS).int()
    return ops.forces(edge_grad, edges, energies, energies, order)[0]
