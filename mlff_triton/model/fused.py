"""Models on fused operators, which make training on a GPU several times as fast.

The layers share their weights with the layers of `mlff_triton.model.tensornet` and
`mlff_triton.model.tensornet2`, return the same results to rounding, and are twice differentiable.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlff_triton._common.availability import triton_obstacle
from mlff_triton.model.charges import ChargeNetwork, equilibrate
from mlff_triton.model.edges import Edges
from mlff_triton.model.fused_layers import (
    charge_outputs,
    interact,
    normalize,
    operators,
    radial_factors,
    scaled_embedding,
)
from mlff_triton.model.readout import Readout
from mlff_triton.model.tensornet import Embedding, Interaction, TensorNet
from mlff_triton.model.tensornet2 import ChargedInteraction, TensorNet2
from mlff_triton.neighbors.graph import Graph


class FusedEmbedding(Embedding):
    """The initial tensors, without tensors per edge."""

    ops: SimpleNamespace

    def forward(self, species: Tensor, edges: Edges) -> Tensor:
        """Compute `Embedding.forward`."""
        ops, loops = self.ops, edges.looped
        weight, bias = self.radial.weight, self.radial.bias
        scale, rows = edges.cutoff[:, None], edges.near_rows
        radial = ops.linear(edges.basis, weight, bias, scale=scale, rows=rows)
        x = ops.pair_embedding(
            loops.directions,
            _of_pairs(radial.unflatten(1, (3, -1)), edges),
            *self._pair_tables(species),
            *loops.pair_graph,
            loops.reverse,
        )
        linears, tensor = self.scalar, self.tensor.weight
        return scaled_embedding(ops, x, self.norm, linears, tensor, self.config.activation)


class FusedInteraction(Interaction):
    """A layer whose messages have one set of factors per pair."""

    ops: SimpleNamespace

    def forward(self, x: Tensor, edges: Edges, charge: Tensor) -> Tensor:
        """Compute `Interaction.forward`."""
        ops, config = self.ops, self.config
        factors = radial_factors(ops, self.radial, config.activation, edges.basis, edges.cutoff)
        factors = _of_pairs(factors, edges)

        def send(y: Tensor) -> Tensor:
            messages: Tensor = ops.pair_messages(y, factors, *edges.looped.pair_graph)
            return messages

        weights = self.tensor_in.weight, self.tensor_out.weight
        return interact(ops, x, *weights, send, 1 + 0.1 * charge[:, 0], config.group)


class FusedChargedInteraction(ChargedInteraction):
    """A layer whose messages have one set of factors per edge, from the charges of its atoms."""

    ops: SimpleNamespace

    def forward(self, x: Tensor, edges: Edges, charges: Tensor) -> Tensor:
        """Compute `ChargedInteraction.forward`."""
        ops, config, loops = self.ops, self.config, edges.looped
        row = loops.pairs if edges.has_loops else edges.row
        ends = [charges.index_select(0, end) for end in (loops.receivers, loops.senders)]
        features = torch.cat([edges.basis.index_select(0, row), *ends], dim=1)
        cutoff = edges.cutoff.index_select(0, row)
        rows = None if edges.n_near is None else loops.row_ptr[-1]
        factors = radial_factors(ops, self.radial, config.activation, features, cutoff, rows)

        def send(y: Tensor) -> Tensor:
            messages: Tensor = ops.message_passing(y, factors, *loops.graph)
            return messages

        weights = self.tensor_in.weight, self.tensor_out.weight
        return interact(ops, x, *weights, send, torch.ones_like(x[0, :, 0]), config.group)


class FusedChargeNetwork(ChargeNetwork):
    """The prediction of charges."""

    ops: SimpleNamespace

    def forward(self, x: Tensor, charge: Tensor, batch: Tensor, n_systems: int) -> Tensor:
        """Compute `ChargeNetwork.forward`."""
        activation = self.config.activation
        found = charge_outputs(self.ops, x, self.norm, self.linears, activation)
        return equilibrate(*found, charge, batch, n_systems, self.config.softness_floor)


class FusedReadout(Readout):
    """The energies of atoms."""

    ops: SimpleNamespace

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute `Readout.forward`."""
        ops, linear = self.ops, self.linear
        activation = self.config.activation if self.config.readout_activation else None
        values = normalize(ops, self.norm, ops.irrep_norms(x))
        found: tuple[Tensor, Tensor] = self.head(
            ops.linear(values, linear.weight, linear.bias, activation)
        )
        return found


class FusedTensorNet2(TensorNet2):
    """A model that skips the edges beyond its network's cutoff but keeps memory for them.

    So shapes do not depend on values, and the host never waits for a GPU: a CUDA graph can capture
    the model, after an ordinary call that compiles the same kernels.
    """

    def _near_edges(self, vectors: Tensor, graph: Graph) -> Edges:
        graph, order = graph.with_first(self._is_near(vectors, graph))
        edges = self._edges(vectors.index_select(0, order), graph)
        return replace(edges, n_near=graph.row_ptr[-1])


AnyModule = TypeVar("AnyModule", bound=nn.Module)
FUSED: dict[type[nn.Module], type[nn.Module]] = {
    Embedding: FusedEmbedding,
    Interaction: FusedInteraction,
    ChargedInteraction: FusedChargedInteraction,
    ChargeNetwork: FusedChargeNetwork,
    Readout: FusedReadout,
    TensorNet2: FusedTensorNet2,
}


def fused(model: TensorNet, op_set: str | None = None) -> TensorNet:
    """Return a model on fused operators that shares the weights of another in memory.

    Parameters
    ----------
    model : TensorNet
        The model.
    op_set : {"triton", "torch"}, optional
        Kernels or their references in PyTorch. By default kernels for models on a GPU; without a
        GPU or Triton, the model itself is returned.

    Returns
    -------
    TensorNet
        It computes `TensorNet.atom_results` to rounding, differentiable twice.
    """
    if op_set is None:
        if not model.std.is_cuda or triton_obstacle(model.std.device) is not None:
            return model
        op_set = "triton"
    return _twin(model, operators(op_set))


def _twin(module: AnyModule, ops: SimpleNamespace) -> AnyModule:
    """Copy a module without its weights, and replace each layer that has a fused version."""
    twin = copy.copy(module)
    twin._modules = {
        name: None if child is None else _twin(child, ops)
        for name, child in module._modules.items()
    }
    kind: Any = FUSED.get(type(module))
    if kind is not None:
        twin.__class__ = kind
        vars(twin)["ops"] = ops
    return twin


def _of_pairs(factors: Tensor, edges: Edges) -> Tensor:
    """Give factors [P (+ 1), 3, F] the row for self-loops that operators expect."""
    return factors if edges.has_loops else functional.pad(factors, (0, 0, 0, 0, 1, 0))
