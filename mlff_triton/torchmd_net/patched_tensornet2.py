"""TorchMD-NET's `TensorNet2` on other operators, with the same weights, inputs and outputs.

It shares the embedding and the layers with `mlff_triton.torchmd_net.patched_tensornet`. In each
layer, charges of both atoms are further features of an edge. The equations are those of
TorchMD-NET's PyTorch operations.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torchmdnet.models.tensornet2 import ChargePredict, TensorNet2

from mlff_triton.model.charges import equilibrate
from mlff_triton.model.fused_layers import (
    charge_outputs,
    normalize,
    operators,
    radial_factors,
)
from mlff_triton.torchmd_net.patched_tensornet import Edges, edges_of, embed, op_set_of, update


class PatchedTensorNet2(TensorNet2):
    """TorchMD-NET's network with charges after `mlff_triton.accelerate`.

    Attributes
    ----------
    mlff_triton_backend : {"auto", "triton", "torch"}
        As in `PatchedTensorNet`.
    """

    mlff_triton_backend: str

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor,
        box: Tensor | None = None,
        q: Tensor | None = None,
        s: Tensor | None = None,  # noqa: ARG002 - TensorNet2 has no spin
    ) -> tuple[Tensor, None, Tensor, Tensor, Tensor]:
        """Compute atom features as `torchmdnet.models.tensornet2.TensorNet2.forward` does."""
        ops = operators(op_set_of(self, pos))
        edges = edges_of(self, pos, batch, box)
        n_systems = self._count_systems(batch, q)
        total = (torch.zeros_like(z) if q is None else q[batch]).to(pos.dtype)[:, None]
        basis = self.distance_expansion(edges.distances)
        self.extra_energy = None
        if self.repulsion is not None:
            self.extra_energy = _repulsion(self.repulsion, z, edges)[:, None]

        pair_basis = self.distance_expansion(edges.pair_distances)
        x = embed(ops, self.tensor_embedding, self.activation, z, edges, pair_basis)
        charges = [self._charges(ops, self.charge_predict_0, x, total, batch, n_systems)]
        ones = pos.new_ones(len(z))
        for layer, predictor in zip(self.layers, self.charge_predicts, strict=True):
            features = torch.cat(
                [
                    basis,
                    charges[-1].index_select(0, edges.receivers),
                    charges[-1].index_select(0, edges.senders),
                ],
                dim=1,
            )
            cutoff = layer.cutoff(edges.distances)
            linears, rows = layer.linears_scalar, edges.n_edges
            factors = radial_factors(ops, linears, self.activation, features, cutoff, rows)
            neighbors = factors, *edges.graph
            x = update(ops, layer, x, ops.message_passing, neighbors, ones)
            charges.append(self._charges(ops, predictor, x, total, batch, n_systems))
        norms = normalize(ops, self.out_norm, ops.irrep_norms(x))
        result = ops.linear(norms, self.linear.weight, self.linear.bias, self.activation)
        if self.output_charges:
            result = torch.cat([result, *charges], dim=1)
        return result, None, z, pos, batch

    def _count_systems(self, batch: Tensor, q: Tensor | None) -> int:
        """Count the systems. Without charges, the host waits for the device, except in a capture.

        A captured batch keeps the number of systems of the batch before it.
        """
        if q is not None:
            return len(q)
        if not (batch.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.charge_predict_0.dim_size = int(batch.max()) + 1
        return int(self.charge_predict_0.dim_size)

    def _charges(
        self,
        ops: SimpleNamespace,
        module: ChargePredict,
        x: Tensor,
        total: Tensor,
        batch: Tensor,
        n_systems: int,
    ) -> Tensor:
        """Predict and equilibrate charges [N, Q] from tensors [9, N, F]."""
        linears = [each for each in module.q_mlp.layers if isinstance(each, nn.Linear)]
        found = charge_outputs(ops, x, module.q_norm, linears, self.activation)
        return equilibrate(*found, total, batch, n_systems)


def _repulsion(module: nn.Module, z: Tensor, edges: Edges) -> Tensor:
    """Compute the nuclear repulsion of each atom, [N]; filler has distance 0 and does not count."""
    distances = edges.distances
    if edges.filler is not None:
        distances = distances.masked_fill(edges.filler, 0)
    energies: Tensor = module(z, torch.stack([edges.receivers, edges.senders]), distances)
    return energies
