"""TorchMD-NET's `TensorNet` with its operations replaced: the same weights, in and outputs.

`torchmd_net.patch` swaps it in. What differs from the original: tensors are nine numbers instead of
twenty-seven; sums over edges go along a sorted list instead of through atomics; the embedding of
pairs, linear in both elements, is made of those of the atoms; what follows a product of matrices is
part of it. Submodules give their weights, and their own ``forward`` and hooks are not called.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torchmdnet.models.tensornet import (
    Interaction,
    TensorEmbedding,
    TensorNet,
)

from mlff_triton.model.irreps import PART_OF_COMPONENT, scale

PACKAGES = {"triton": "mlff_triton.kernels.ops", "torch": "mlff_triton.kernels.ops.reference"}
OPERATORS = (
    "edge_tensors",
    "irrep_norms",
    "layer_norm",
    "linear",
    "message_passing",
    "tensor_product",
)


@functools.cache
def operators(op_set: str) -> SimpleNamespace:
    """All operators of "triton" or "torch", by the names of their files and of themselves."""
    homes = {name: importlib.import_module(f"{PACKAGES[op_set]}.{name}") for name in OPERATORS}
    return SimpleNamespace(**{name: getattr(home, name) for name, home in homes.items()})


@dataclass(frozen=True)
class Edges:
    """Directed edges sorted by receiver and sender, self-loops among them.

    Attributes
    ----------
    row_ptr, senders, reverse : int64 [N + 1], [E], [E]
        As in `mlff_triton.Graph`. With static shapes the list goes on beyond ``row_ptr[N]``.
    receivers : int64 [E]
        Receiver of each edge.
    filler : bool [E] or None
        Where the list goes on without an edge; None if it never does.
    distances : [E]
        Å.
    directions : [E, 3]
        Unit vectors from sender to receiver, or zero.
    """

    row_ptr: Tensor
    senders: Tensor
    reverse: Tensor
    receivers: Tensor
    filler: Tensor | None
    distances: Tensor
    directions: Tensor

    @property
    def graph(self) -> tuple[Tensor, Tensor, Tensor]:
        """What message passing takes."""
        return self.row_ptr, self.senders, self.reverse

    def cut(self, factors: Tensor) -> Tensor:
        """Factors [E, 3, F] without those of fillers, whose gradients kernels leave unwritten."""
        if self.filler is None:
            return factors
        return factors.masked_fill(self.filler[:, None, None], 0)


def sort_edges(
    index: Tensor, distances: Tensor, vectors: Tensor, n_atoms: int, filled: bool
) -> Edges:
    """Sort pairs that come in any order; the host need not wait.

    Parameters
    ----------
    index : int64 [2, E]
        Receiver and sender of every pair, both directions present, or -1 where there is none.
    distances, vectors : [E], [E, 3]
        Length of each pair, and the vector from sender to receiver, Å.
    n_atoms : int
        Number of atoms.
    filled : bool
        Whether there may be a -1.
    """
    base = n_atoms + 1
    if filled:
        index = index.where(index >= 0, n_atoms)  # sorted to the end
    key, order = (index[0] * base + index[1]).sort(stable=True)
    receivers, senders = key // base, key % base
    row_ptr = torch.searchsorted(receivers, torch.arange(base, device=index.device))
    reverse = (senders * base + receivers).argsort(stable=True)
    distances, vectors = distances.index_select(0, order), vectors.index_select(0, order)
    lengths = distances.masked_fill(receivers == senders, 1)  # 0 / 0 has no derivative
    filler = None
    if filled:
        filler = receivers == n_atoms
        receivers, senders = receivers.clamp(max=n_atoms - 1), senders.clamp(max=n_atoms - 1)
        vectors = vectors.masked_fill(filler[:, None], 0)
    return Edges(
        row_ptr=row_ptr,
        senders=senders,
        reverse=reverse,
        receivers=receivers,
        filler=filler,
        distances=distances,
        directions=vectors / lengths[:, None],
    )


class PatchedTensorNet(TensorNet):
    """TorchMD-NET's network after `mlff_triton.accelerate`.

    Attributes
    ----------
    mlff_triton_backend : {"auto", "triton", "torch"}
        Kernels where the tensors lie on a GPU; kernels or an error; PyTorch everywhere.
    """

    mlff_triton_backend: str

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        batch: Tensor,
        box: Tensor | None = None,
        q: Tensor | None = None,
        s: Tensor | None = None,  # noqa: ARG002 - TensorNet has no spin
    ) -> tuple[Tensor, None, Tensor, Tensor, Tensor]:
        """As `torchmdnet.models.tensornet.TensorNet.forward`."""
        op_set = self.mlff_triton_backend
        if op_set == "auto":
            op_set = "triton" if pos.is_cuda else "torch"
        ops = operators(op_set)
        edges = self._edges(pos, batch, box, len(z), op_set)
        total_charge = torch.zeros_like(z) if q is None else q[batch]
        charge_factor = (1 + 0.1 * total_charge).to(pos.dtype)
        basis = self.distance_expansion(edges.distances)

        x = _embed(ops, self.tensor_embedding, self.activation, z, edges, basis)
        for layer in self.layers:
            x = _interact(ops, layer, self.activation, x, edges, basis, charge_factor)
        norms = _normalize(ops, self.out_norm, ops.irrep_norms(x))
        features = ops.linear(norms, self.linear.weight, self.linear.bias, self.activation)
        return features, None, z, pos, batch

    def _edges(
        self, pos: Tensor, batch: Tensor, box: Tensor | None, n_atoms: int, op_set: str
    ) -> Edges:
        index, distances, vectors = self.distance(pos, batch, box)
        filled = self.static_shapes
        if filled and op_set == "torch":  # only kernels can leave fillers out
            found = index[0] >= 0
            index, distances, vectors = index[:, found], distances[found], vectors[found]
            filled = False
        return sort_edges(index.long(), distances, vectors, n_atoms, filled)


def _embed(
    ops: SimpleNamespace,
    module: TensorEmbedding,
    activation: str,
    z: Tensor,
    edges: Edges,
    basis: Tensor,
) -> Tensor:
    """First tensors of all atoms: [9, N, F]."""
    atoms = module.emb(z)
    of_receiver, of_sender = module.emb2.weight.chunk(2, dim=1)
    pairs = ops.linear(atoms, of_receiver, module.emb2.bias).index_select(0, edges.receivers)
    pairs = pairs + ops.linear(atoms, of_sender).index_select(0, edges.senders)

    projections = [module.distance_proj1, module.distance_proj2, module.distance_proj3]
    radial = ops.linear(
        basis,
        torch.cat([projection.weight for projection in projections]),
        torch.cat([projection.bias for projection in projections]),
        scale=module.cutoff(edges.distances)[:, None],
    )
    factors = edges.cut(radial.unflatten(1, (3, -1)) * pairs[:, None])
    x = ops.edge_tensors(edges.directions, factors, edges.row_ptr)

    scales = _normalize(ops, module.init_norm, _squared_norm(ops, x))
    for linear in module.linears_scalar:
        scales = ops.linear(scales, linear.weight, linear.bias, activation)
    return scale(_mix_channels(x, module.linears_tensor), scales.unflatten(1, (3, -1)))


def _interact(
    ops: SimpleNamespace,
    layer: Interaction,
    activation: str,
    x: Tensor,
    edges: Edges,
    basis: Tensor,
    charge_factor: Tensor,
) -> Tensor:
    """Tensors after a layer: [9, N, F]."""
    factors = basis
    *inner, last = layer.linears_scalar
    for linear in inner:
        factors = ops.linear(factors, linear.weight, linear.bias, activation)
    cutoff = layer.cutoff(edges.distances)[:, None]
    factors = ops.linear(factors, last.weight, last.bias, activation, scale=cutoff)
    factors = edges.cut(factors.unflatten(1, (3, -1)))

    x = x / (_squared_norm(ops, x) + 1)
    y = _mix_channels(x, layer.linears_tensor[:3])
    message = ops.message_passing(y, factors, *edges.graph)
    group = layer.equivariance_invariance_group
    product = ops.tensor_product(y, message, charge_factor if group == "O(3)" else None, group)
    delta = _mix_channels(product, layer.linears_tensor[3:])
    # q (D D + D D) / 2: the product with the charge serves SO(3) here too
    square = ops.tensor_product(delta, delta, charge_factor / 2, "O(3)", normalize=False)
    updated: Tensor = x + delta + square
    return updated


def _mix_channels(x: Tensor, linears: list[nn.Linear]) -> Tensor:
    """A linear map for each of the three parts, [9, N, F], as one product of batches."""
    weights = torch.stack([linears[part].weight for part in PART_OF_COMPONENT])
    return torch.bmm(x, weights.mT)


def _squared_norm(ops: SimpleNamespace, x: Tensor) -> Tensor:
    """[9, N, F] -> [N, F]."""
    norms: Tensor = ops.irrep_norms(x).unflatten(1, (3, -1)).sum(1)
    return norms


def _normalize(ops: SimpleNamespace, norm: nn.LayerNorm, x: Tensor) -> Tensor:
    normed: Tensor = ops.layer_norm(x, norm.weight, norm.bias, norm.eps)
    return normed
