"""Small random TensorNets, and batches of structures for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from ase import Atoms
from torch import Tensor

from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.step import Outputs, Systems, evaluate_step
from mlff_triton.kernels.tensornet.protocol import StepOperators
from mlff_triton.kernels.tensornet.reference import operators as plain_torch
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.config import TensorNetConfig, ZBLConfig
from mlff_triton.model.prediction import Prediction, predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import Box
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_close

CPU = torch.device("cpu")
CONFIG = TensorNetConfig(
    elements=(1, 6, 7, 8), hidden_channels=16, num_rbf=6, cutoff_upper=3.5, num_layers=2
)
ZBL = ZBLConfig(cutoff=2.5, prefactor=14.4, length_scale=1.1, charges=(1.0, 5.5, 7.0, 0.0))


@dataclass(frozen=True)
class Batch:
    """Structures with their charges and their neighbors within a cutoff."""

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
        ends = self.sizes.cumsum(0)
        system_ptr = torch.cat([ends.new_zeros(1), ends]).int()
        inputs = self.numbers, torch.tensor(self.charges).double(), system_ptr
        systems = Systems.of(p, *(t.to(device) for t in inputs))
        if order is not None:
            systems.clone().sort(order.int().to(device), systems)
        return systems

    def step(
        self, p: Parameters, dtype: torch.dtype, operators: StepOperators = plain_torch
    ) -> Outputs:
        graph = self.graph
        edges = Edges.of_graph(
            graph.row_ptr, graph.senders, graph.reverse, self.vectors, p.tables.knots
        )
        status = torch.zeros(len(self.numbers), dtype=torch.int32)
        return evaluate_step(operators, p, self.systems(p), edges.to(dtype), status)


def model_of(**changes: object) -> TensorNet:
    """Make a model in float64 with random weights and energy scales."""
    torch.manual_seed(1)
    model = TensorNet(replace(CONFIG, **changes)).double().requires_grad_(False)
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.LayerNorm)):
        norm.weight += 0.3 * torch.randn_like(norm.weight)
        norm.bias += 0.3 * torch.randn_like(norm.bias)
    model.std.fill_(2.5)
    model.mean.fill_(-0.7)
    model.references.copy_(-100 * torch.rand(len(model.references)))
    return model


Model = TypeVar("Model", bound=TensorNet)


def uncertain(model: Model, n_rows: int = 5, limit: float | None = 0.5) -> Model:
    """Give a model a random map to uncertainties, which then differ by much between atoms."""
    n_hidden = model.readout.head.last_channels
    model.readout.uncertainty = torch.randn(n_rows, n_hidden).float().to(model.dtype)
    if limit is not None:
        model.readout.uncertainty_limit = torch.tensor(limit, dtype=model.dtype)
    return model


def tensors_of(outputs: Outputs) -> tuple[Tensor, ...]:
    return outputs.totals.values, outputs.forces, outputs.atom_energies


def assert_equal(outputs: Outputs, expected: Outputs) -> None:
    """Compare results of two steps to the bit."""
    pairs = zip(tensors_of(outputs), tensors_of(expected), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    if expected.uncertainty is not None:
        assert torch.equal(outputs.uncertainty, expected.uncertainty)


def assert_same(outputs: Outputs, expected: Prediction, dtype: torch.dtype) -> None:
    assert {t.dtype for t in tensors_of(outputs)} == {torch.float64}
    found = outputs.prediction
    assert_close(found.energy, expected.energy, 0, dtype)
    assert_close(found.atom_energies, expected.atom_energies, 0, dtype)
    assert_close(found.virial, expected.virial, 1, dtype)
    assert_close(found.forces, expected.forces, 1, dtype)
    assert (found.uncertainty is None) == (expected.uncertainty is None)
    if found.uncertainty is not None:
        assert found.uncertainty.dtype == dtype
        assert_close(found.uncertainty, expected.uncertainty, 1, dtype)
    assert not outputs.totals.status.any()
