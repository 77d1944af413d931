"""A whole step of the engine against the exact module, which differentiates by autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
import torch
from ase import Atoms
from torch import Tensor

from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.step import Outputs, Systems, step
from mlff_triton.errors import UnsupportedModelError
from mlff_triton.kernels.neighbors.reference.edges import cast, edges_of_graph
from mlff_triton.kernels.tensornet.reference import operators as plain_torch
from mlff_triton.model.config import TensorNetConfig, ZBLConfig
from mlff_triton.model.prediction import Prediction, predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import Box, neighbor_list
from mlff_triton.testing import assert_close, random_cluster, random_crystal, water_box

# PyTorch compiles something when it first differentiates forward, in a way that it deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

CPU = torch.device("cpu")
CONFIG = TensorNetConfig(
    elements=(1, 6, 7, 8), hidden_channels=16, num_rbf=6, cutoff_upper=3.5, num_layers=2
)
ZBL = ZBLConfig(cutoff=2.5, prefactor=14.4, length_scale=1.1, charges=(1.0, 5.5, 7.0, 0.0))
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
}


@dataclass(frozen=True)
class Batch:
    """Several structures, with a charge each, and their neighbors within a cutoff."""

    structures: Sequence[Atoms]
    charges: Sequence[float]
    cutoff: float = CONFIG.cutoff

    @cached_property
    def graph(self) -> Graph:
        lists = [
            neighbor_list(a.positions, self.cutoff, a.cell.array, a.pbc) for a in self.structures
        ]
        return concatenate(lists)

    @cached_property
    def numbers(self) -> Tensor:
        return torch.tensor(np.concatenate([a.numbers for a in self.structures]))

    @cached_property
    def positions(self) -> Tensor:
        return torch.tensor(np.concatenate([a.positions for a in self.structures]))

    @cached_property
    def cell(self) -> Tensor:
        boxes = [Box.of(a.cell.array, a.pbc).cell for a in self.structures]
        return torch.tensor(np.stack(boxes))

    @cached_property
    def sizes(self) -> Tensor:
        return torch.tensor([len(a) for a in self.structures])

    @cached_property
    def system(self) -> Tensor:
        return torch.arange(len(self.sizes)).repeat_interleave(self.sizes)

    @cached_property
    def vectors(self) -> Tensor:
        return self.graph.vectors(self.positions, self.cell, self.system)

    def predict(self, model: TensorNet) -> Prediction:
        return predict(
            model,
            self.numbers,
            self.positions,
            self.graph,
            cell=self.cell,
            batch=self.system,
            charge=torch.tensor(self.charges).double(),
        )

    def systems(self, p: Parameters, order: Tensor | None = None) -> Systems:
        device = p.receiver.device
        order = torch.arange(len(self.numbers)) if order is None else order
        ends = self.sizes.cumsum(0)
        system_ptr = torch.cat([ends.new_zeros(1), ends]).int()
        charges = torch.tensor(self.charges).double()
        inputs = self.numbers, charges, system_ptr, order.int()
        return Systems.of(p, *(t.to(device) for t in inputs))

    def step(self, p: Parameters, dtype: torch.dtype) -> Outputs:
        graph = self.graph
        edges = edges_of_graph(
            graph.row_ptr, graph.senders, graph.reverse, self.vectors, p.tables.knots
        )
        status = torch.zeros(len(self.numbers), dtype=torch.int32)
        return step(plain_torch, p, self.systems(p), cast(edges, dtype), status)


def model_of(**changes: object) -> TensorNet:
    """A model in float64 with random weights and energy scales."""
    torch.manual_seed(1)
    model = TensorNet(replace(CONFIG, **changes)).double().requires_grad_(False)
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)):
        norm.weight += 0.3 * torch.randn_like(norm.weight)
        norm.bias += 0.3 * torch.randn_like(norm.bias)
    model.std.fill_(2.5)
    model.mean.fill_(-0.7)
    model.references.copy_(-100 * torch.rand(len(model.references)))
    return model


@pytest.fixture(scope="module", params=VARIANTS)
def model(request) -> TensorNet:
    return model_of(**VARIANTS[request.param])


@pytest.fixture(scope="module")
def batch() -> Batch:
    lonely = Atoms("CO", [[0, 0, 0], [50, 0, 0]])
    crystals = random_crystal(4, "triclinic"), random_crystal(3, "small"), random_crystal(5, "slab")
    return Batch([random_cluster(9), *crystals, lonely], [1, 0, -2, 0, 1])


def assert_same(outputs: Outputs, expected: Prediction, dtype: torch.dtype) -> None:
    assert {t.dtype for t in outputs} == {torch.float64}
    found = outputs.prediction
    assert_close(found.energy, expected.energy, 0, dtype)
    assert_close(found.atom_energies, expected.atom_energies, 0, dtype)
    assert_close(found.virial, expected.virial, 1, dtype)
    assert_close(found.forces, expected.forces, 1, dtype)
    assert not outputs.status.any()


def test_agrees_with_the_exact_module(model, batch):
    p = Parameters.of(model, CPU, torch.float64)
    outputs, expected = batch.step(p, torch.float64), batch.predict(model)
    assert_same(outputs, expected, torch.float64)
    alone = atoms_alone(model, batch)
    assert_close(outputs.totals[:, 0] - alone, expected.energy - alone, 0)


def test_float32_is_as_exact_as_the_modules(model, batch):
    p = Parameters.of(model, CPU, torch.float32)
    outputs, truth = batch.step(p, torch.float32), batch.predict(model)
    own = batch.predict(model_like(model, torch.float32))
    assert_same(outputs, truth, torch.float32)
    exact, found = truth.forces, outputs.prediction.forces
    error, own_error = (float((f - exact).norm() / exact.norm()) for f in (found, own.forces))
    assert error <= 1.15 * own_error  # of so few atoms; rounding is a matter of luck
    offsets = {"energy": atoms_alone(model, batch), "virial": 0}  # not for the network to get right
    for name, offset in offsets.items():
        exact, *computed = (getattr(p, name) for p in (truth, outputs.prediction, own))
        scale = (exact - offset).abs().max()
        error, own_error = (float((x - exact).abs().max() / scale) for x in computed)
        assert error <= max(2 * own_error, 1e-6), name


def model_like(model: TensorNet, dtype: torch.dtype) -> TensorNet:
    copy = TensorNet(model.config)
    copy.load_state_dict(model.state_dict())
    return copy.to(dtype)


def atoms_alone(model: TensorNet, batch: Batch) -> Tensor:
    """What does not come from the network in the energy of each system."""
    references = model.references[model.species(batch.numbers)]
    return model.mean + torch.zeros(len(batch.sizes)).double().index_add(
        0, batch.system, references
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nuclear_repulsion_may_reach_farther_than_the_network(batch, dtype):
    model = model_of(zbl=replace(ZBL, cutoff=4.5), num_layers=1)
    far = replace(batch, cutoff=model.cutoff)
    p = Parameters.of(model, CPU, dtype)
    expected = far.predict(model)
    assert_same(far.step(p, dtype), expected, dtype)
    beyond = expected.energy - batch.predict(model).energy
    assert beyond.max() > 1e-3


def test_two_steps_agree_to_the_bit(batch):
    p = Parameters.of(model_of(), CPU, torch.float32)
    first, second = (batch.step(p, torch.float32) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_forces_of_a_system_cancel(batch):
    p = Parameters.of(model_of(num_layers=1), CPU, torch.float32)
    outputs = batch.step(p, torch.float32)
    for forces in outputs.forces.double().split(batch.sizes.tolist()):
        assert forces.sum(0).abs().max() < 1e-6 * max(1, forces.abs().max())


def test_the_order_of_atoms_does_not_matter(batch):
    """The engine may sort them: results are in the user's order."""
    p = Parameters.of(model_of(num_layers=1), CPU, torch.float32)
    expected = batch.step(p, torch.float32)
    starts = batch.sizes.cumsum(0) - batch.sizes
    order = torch.cat([torch.randperm(n) for n in batch.sizes.tolist()]) + starts[batch.system]
    rank = torch.argsort(order)
    graph = Graph.from_pairs(
        rank[batch.graph.receivers], rank[batch.graph.senders], batch.graph.shifts, len(order)
    )
    vectors = graph.vectors(batch.positions[order], batch.cell, batch.system)
    edges = edges_of_graph(graph.row_ptr, graph.senders, graph.reverse, vectors, p.tables.knots)
    systems = batch.systems(p, order)
    status = torch.zeros(len(order), dtype=torch.int32)
    outputs = step(plain_torch, p, systems, cast(edges, torch.float32), status)
    assert_close(outputs.forces, expected.forces, 1, torch.float32)
    assert_close(outputs.atom_energies, expected.atom_energies, 0, torch.float32)
    assert_close(outputs.totals, expected.totals, 1, torch.float32)


def test_water():
    model = model_of(num_layers=1)
    water = Batch([water_box(8)], [0])
    p = Parameters.of(model, CPU, torch.float64)
    assert_same(water.step(p, torch.float64), water.predict(model), torch.float64)


def test_the_worst_status_is_reported(batch):
    p = Parameters.of(model_of(num_layers=1), CPU, torch.float32)
    graph = batch.graph
    edges = edges_of_graph(
        graph.row_ptr, graph.senders, graph.reverse, batch.vectors, p.tables.knots
    )
    status = torch.zeros(len(batch.numbers), dtype=torch.int32)
    status[3], status[4], status[-1] = 1, 2, 4
    systems = batch.systems(p)
    outputs = step(plain_torch, p, systems, cast(edges, torch.float32), status)
    assert outputs.status.tolist() == [2, 0, 0, 0, 4]


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
