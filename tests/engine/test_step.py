"""A whole step of the engine compared with the exact module and autograd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from mlff_triton.engine.host_operators import PACKAGES, load
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.step import evaluate_step
from mlff_triton.errors import UnsupportedModelError
from mlff_triton.kernels.tensornet.reference import operators as plain_torch
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.graph import Graph
from mlff_triton.testing import assert_close, random_cluster, random_crystal, water_box
from tests.support.tensornets import CPU, ZBL, Batch, assert_equal, assert_same, model_of

# PyTorch's forward differentiation compiles in a way that PyTorch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

VARIANTS = {
    "O(3)": {},
    "SO(3)": {"group": "SO(3)", "activation": "ssp"},
    "one layer": {"num_layers": 1, "activation": "tanh", "readout_activation": False},
    "three layers": {"num_layers": 3, "activation": "mish"},
    "gauss": {"rbf_type": "gauss", "activation": "sigmoid", "self_loops": False},
    "lower cutoff": {"cutoff_lower": 1.3, "group": "SO(3)", "activation": "swish"},
    "bessel": {"rbf_type": "bessel", "bessel_orders": 2, "self_loops": False, "head": "gated"},
    "bessel-smooth": {
        "rbf_type": "bessel-smooth",
        "head": "gated",
        "readout_activation": False,
        "group": "SO(3)",
        "num_layers": 1,
    },
    "more channels than heads fill": {"hidden_channels": 64, "num_layers": 1},
    "nuclear repulsion": {"zbl": ZBL, "num_layers": 1},
    "smooth repulsion": {"zbl": replace(ZBL, is_smooth=True), "num_layers": 1},
    "48 channels": {"hidden_channels": 48, "num_layers": 1},
    "7 channels": {"hidden_channels": 7, "group": "SO(3)"},
}
HOST_OPERATORS = {backend: load(backend).network for backend in PACKAGES}
operators = pytest.mark.parametrize("operators", HOST_OPERATORS.values(), ids=HOST_OPERATORS.keys())


@pytest.fixture(scope="module", params=VARIANTS)
def model(request) -> TensorNet:
    return model_of(**VARIANTS[request.param])


@pytest.fixture(scope="module")
def batch() -> Batch:
    lonely = Atoms("CO", [[0, 0, 0], [50, 0, 0]])
    crystals = random_crystal(4, "triclinic"), random_crystal(3, "small"), random_crystal(5, "slab")
    return Batch([random_cluster(9), *crystals, lonely], [1, 0, -2, 0, 1])


@operators
def test_agrees_with_the_exact_module(model, batch, operators):
    p = Parameters.of(model, CPU, torch.float64)
    outputs, expected = batch.step(p, torch.float64, operators), batch.predict(model)
    assert_same(outputs, expected, torch.float64)
    alone = atoms_alone(model, batch)
    assert_close(outputs.totals.energy - alone, expected.energy - alone, 0)


@operators
def test_float32_is_as_exact_as_the_modules(model, batch, rng, operators):
    """Rounding errors of so few atoms scatter, so those of four displaced batches are averaged."""
    p, own_model = Parameters.of(model, CPU, torch.float32), model_like(model, torch.float32)
    squares = {name: np.zeros(2) for name in ("forces", "energy", "virial")}  # step and module
    for _ in range(4):
        moved = displaced(batch, rng)
        outputs, truth = moved.step(p, torch.float32, operators), moved.predict(model)
        assert_same(outputs, truth, torch.float32)
        computed = outputs.prediction, moved.predict(own_model)
        offsets = {"energy": atoms_alone(model, moved)}  # not from the network
        for name, total in squares.items():
            exact, *found = (getattr(prediction, name) for prediction in (truth, *computed))
            norm = (exact - offsets.get(name, 0)).norm()
            total += [float((x - exact).norm() / norm) ** 2 for x in found]
    errors = {name: np.sqrt(total / 4) for name, total in squares.items()}
    assert errors["forces"][0] <= 1.15 * errors["forces"][1]
    for name in ("energy", "virial"):
        assert errors[name][0] <= max(2 * errors[name][1], 1e-6), name


def displaced(batch: Batch, rng: np.random.Generator) -> Batch:
    structures = [atoms.copy() for atoms in batch.structures]
    for atoms in structures:
        atoms.positions += rng.uniform(-0.05, 0.05, atoms.positions.shape)
    return Batch(structures, batch.charges, batch.cutoff)


def model_like(model: TensorNet, dtype: torch.dtype) -> TensorNet:
    copy = TensorNet(model.config)
    copy.load_state_dict(model.state_dict())
    return copy.to(dtype)


def atoms_alone(model: TensorNet, batch: Batch) -> Tensor:
    """Return the part of each system's energy that does not come from the network."""
    references = model.references[model.species(batch.numbers)]
    return model.mean + torch.zeros(len(batch.sizes)).double().index_add(
        0, batch.system, references
    )


@operators
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nuclear_repulsion_may_reach_farther_than_the_network(batch, dtype, operators):
    model = model_of(zbl=replace(ZBL, cutoff=4.5), num_layers=1)
    far = replace(batch, cutoff=model.cutoff)
    p = Parameters.of(model, CPU, dtype)
    expected = far.predict(model)
    assert_same(far.step(p, dtype, operators), expected, dtype)
    beyond = expected.energy - batch.predict(model).energy
    assert beyond.max() > 1e-3


@operators
def test_two_steps_agree_to_the_bit(batch, operators):
    p = Parameters.of(model_of(), CPU, torch.float32)
    first, second = (batch.step(p, torch.float32, operators) for _ in range(2))
    assert_equal(first, second)


@operators
def test_forces_of_a_system_cancel(batch, operators):
    p = Parameters.of(model_of(num_layers=1), CPU, torch.float32)
    outputs = batch.step(p, torch.float32, operators)
    for forces in outputs.forces.double().split(batch.sizes.tolist()):
        assert forces.sum(0).abs().max() < 1e-6 * max(1, forces.abs().max())


def test_the_order_of_atoms_does_not_matter(batch):
    """The engine may sort atoms, but returns results in the user's order."""
    p = Parameters.of(model_of(num_layers=1), CPU, torch.float32)
    expected = batch.step(p, torch.float32)
    starts = batch.sizes.cumsum(0) - batch.sizes
    order = torch.cat([torch.randperm(n) for n in batch.sizes.tolist()]) + starts[batch.system]
    rank = torch.argsort(order)
    graph = Graph.from_pairs(
        rank[batch.graph.receivers], rank[batch.graph.senders], batch.graph.shifts, len(order)
    )
    vectors = graph.vectors(batch.positions[order], batch.cell, batch.system)
    edges = Edges.of_graph(graph.row_ptr, graph.senders, graph.reverse, vectors, p.tables.knots)
    systems = batch.systems(p, order)
    status = torch.zeros(len(order), dtype=torch.int32)
    outputs = evaluate_step(plain_torch, p, systems, edges.to(torch.float32), status)
    assert_close(outputs.forces, expected.forces, 1, torch.float32)
    assert_close(outputs.atom_energies, expected.atom_energies, 0, torch.float32)
    assert_close(outputs.totals.values, expected.totals.values, 1, torch.float32)


def test_water():
    model = model_of(num_layers=1)
    water = Batch([water_box(8)], [0])
    p = Parameters.of(model, CPU, torch.float64)
    assert_same(water.step(p, torch.float64), water.predict(model), torch.float64)


def test_the_worst_status_is_reported(batch):
    p = Parameters.of(model_of(num_layers=1), CPU, torch.float32)
    graph = batch.graph
    edges = Edges.of_graph(
        graph.row_ptr, graph.senders, graph.reverse, batch.vectors, p.tables.knots
    )
    status = torch.zeros(len(batch.numbers), dtype=torch.int32)
    status[3], status[4], status[-1] = 1, 2, 4
    systems = batch.systems(p)
    outputs = evaluate_step(plain_torch, p, systems, edges.to(torch.float32), status)
    assert outputs.totals.status.tolist() == [2, 0, 0, 0, 4]


def test_models_without_layers_are_refused():
    with pytest.raises(UnsupportedModelError, match="needs a layer: use backend='exact'"):
        Parameters.of(model_of(num_layers=0), CPU, torch.float64)


def test_parameters_leave_the_model_alone():
    model = model_of(num_layers=1)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    Parameters.of(model, CPU, torch.float32)
    assert model.dtype == torch.float64
    for name, t in model.state_dict().items():
        assert torch.equal(t, before[name])
