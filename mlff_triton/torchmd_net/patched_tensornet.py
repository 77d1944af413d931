"""TorchMD-NET's `TensorNet` on other operators, with the same weights, inputs and outputs.

`mlff_triton.torchmd_net.patch` replaces the original by it. The differences are:

- Tensors have nine components instead of three 3x3 matrices.
- Sums over edges follow a sorted list instead of using atomics.
- Pair embeddings, which are linear in both elements, are sums of atom embeddings.
- Functions of the distance are evaluated once per pair of atoms instead of twice, and once for all
  self-loops.
- The operations that follow a matrix product are fused with it.

The submodules only provide weights. Their ``forward`` methods and hooks are not called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torchmdnet.models.tensornet import TensorEmbedding, TensorNet

from mlff_triton.model.fused_layers import (
    interact,
    normalize,
    operators,
    radial_factors,
    scaled_embedding,
)


@dataclass(frozen=True)
class Edges:
    """Directed edges sorted by receiver and sender, including self-loops.

    Attributes
    ----------
    row_ptr, senders, reverse : int64 [N + 1], [E], [E]
        As in `mlff_triton.Graph`. With static shapes, filler follows the edges from
        ``row_ptr[N]`` on.
    receivers : int64 [E]
        Receiver of each edge.
    filler : bool [E] or None
        True for filler that is not an edge; None without static shapes.
    distances : [E]
        Lengths in Å.
    directions : [E, 3]
        Unit vectors from sender to receiver, or zero.
    pairs : int64 [E]
        Pair of each edge, from 1 on, which opposite edges share; 0 for all self-loops.
    pair_distances : [P]
        Length of each pair in Å, the first of which is 0. With static shapes, the last lengths may
        belong to no pair.
    n_pairs : int64 [] or None
        Number of existing pairs, including pair 0; None without static shapes.
    """

    row_ptr: Tensor
    senders: Tensor
    reverse: Tensor
    receivers: Tensor
    filler: Tensor | None
    distances: Tensor
    directions: Tensor
    pairs: Tensor
    pair_distances: Tensor
    n_pairs: Tensor | None

    @property
    def n_edges(self) -> Tensor | None:
        """Number of edges without padding; None without static shapes."""
        return None if self.filler is None else self.row_ptr[-1]

    @property
    def graph(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row pointers, senders and reverse indices, the arguments of message passing."""
        return self.row_ptr, self.senders, self.reverse

    @property
    def pair_graph(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row pointers, senders and pairs, the arguments of message passing with pairs."""
        return self.row_ptr, self.senders, self.pairs


def sort_edges(
    index: Tensor, distances: Tensor, vectors: Tensor, n_atoms: int, filled: bool
) -> Edges:
    """Sort pairs by receiver and sender, without synchronizing with the host.

    Parameters
    ----------
    index : int64 [2, E]
        Receiver and sender of every pair, in both directions and any order, and all self-loops; -1
        in filler.
    distances, vectors : [E], [E, 3]
        Length of each pair and the vector from sender to receiver, in Å.
    n_atoms : int
        Number of atoms.
    filled : bool
        If True, ``index`` may contain filler.

    Returns
    -------
    Edges
    """
    base = n_atoms + 1
    if filled:
        index = index.where(index >= 0, n_atoms)  # sort filler to the end
    key, order = (index[0] * base + index[1]).sort(stable=True)
    receivers, senders = key // base, key % base
    row_ptr = torch.searchsorted(receivers, torch.arange(base, device=index.device))
    reverse = (senders * base + receivers).argsort(stable=True)
    pairs, first_edges, last_pair = _number_pairs(receivers, senders, reverse, n_atoms)
    of_pairs = distances.index_select(0, order.index_select(0, first_edges))
    distances, vectors = distances.index_select(0, order), vectors.index_select(0, order)
    lengths = distances.masked_fill(receivers == senders, 1)  # avoid 0 / 0
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
        pairs=pairs,
        pair_distances=torch.cat([distances.new_zeros(1), of_pairs]),
        n_pairs=last_pair + 1 if filled else None,
    )


def _number_pairs(
    receivers: Tensor, senders: Tensor, reverse: Tensor, n_atoms: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Number the pairs of sorted edges.

    Returns the pair of each edge, one edge of each pair, and the last pair.

    Pairs are counted from 1 in the order of their first edges, and 0 are self-loops. There are as
    many pairs as if nothing were filler; pairs that do not exist have arbitrary edges.
    """
    first = receivers < senders
    count = first.cumsum(0)
    pairs = count.where(first, 0)
    pairs = pairs.index_select(0, reverse).where(receivers > senders, pairs)
    n_pairs = max(0, len(receivers) - n_atoms) // 2
    edges = torch.arange(n_pairs, device=receivers.device)
    found = torch.searchsorted(count, edges + 1)
    return pairs, found.where(found < len(count), edges), first.sum()


def op_set_of(network: Any, pos: Tensor) -> str:
    """Return the operators that an accelerated network uses: "triton" or "torch"."""
    op_set = str(network.mlff_triton_backend)
    if op_set == "auto":
        return "triton" if pos.is_cuda else "torch"
    return op_set


def edges_of(network: Any, pos: Tensor, batch: Tensor, box: Tensor | None) -> Edges:
    """Search the neighbors of all atoms as the network does, and sort them."""
    index, distances, vectors = network.distance(pos, batch, box)
    filled = bool(network.static_shapes)
    if filled and op_set_of(network, pos) == "torch":  # only kernels can skip filler
        found = index[0] >= 0
        index, distances, vectors = index[:, found], distances[found], vectors[found]
        filled = False
    return sort_edges(index.long(), distances, vectors, len(pos), filled)


class PatchedTensorNet(TensorNet):
    """TorchMD-NET's network after `mlff_triton.accelerate`.

    Attributes
    ----------
    mlff_triton_backend : {"auto", "triton", "torch"}
        "auto" uses kernels for tensors on a GPU and PyTorch otherwise, "triton" always kernels,
        and "torch" always PyTorch.
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
        """Compute atom features as `torchmdnet.models.tensornet.TensorNet.forward` does."""
        ops = operators(op_set_of(self, pos))
        edges = edges_of(self, pos, batch, box)
        total_charge = torch.zeros_like(z) if q is None else q[batch]
        charge_factor = (1 + 0.1 * total_charge).to(pos.dtype)
        distances = edges.pair_distances
        basis = self.distance_expansion(distances)

        x = embed(ops, self.tensor_embedding, self.activation, z, edges, basis)
        for layer in self.layers:
            cutoff = layer.cutoff(distances)
            linears, rows = layer.linears_scalar, edges.n_pairs
            factors = radial_factors(ops, linears, self.activation, basis, cutoff, rows)
            neighbors = factors, *edges.pair_graph
            x = update(ops, layer, x, ops.pair_messages, neighbors, charge_factor)
        norms = normalize(ops, self.out_norm, ops.irrep_norms(x))
        features = ops.linear(norms, self.linear.weight, self.linear.bias, self.activation)
        return features, None, z, pos, batch


def embed(
    ops: SimpleNamespace,
    module: TensorEmbedding,
    activation: str,
    z: Tensor,
    edges: Edges,
    basis: Tensor,
) -> Tensor:
    """Compute the initial tensors of all atoms, [9, N, F], given a basis [P, K] of the pairs."""
    atoms = module.emb(z)
    receiver_weight, sender_weight = module.emb2.weight.chunk(2, dim=1)
    at_receivers = ops.linear(atoms, receiver_weight, module.emb2.bias)
    at_senders = ops.linear(atoms, sender_weight)

    projections = [module.distance_proj1, module.distance_proj2, module.distance_proj3]
    radial = ops.linear(
        basis,
        torch.cat([projection.weight for projection in projections]),
        torch.cat([projection.bias for projection in projections]),
        scale=module.cutoff(edges.pair_distances)[:, None],
        rows=edges.n_pairs,
    )
    x = ops.pair_embedding(
        edges.directions,
        radial.unflatten(1, (3, -1)),
        at_receivers,
        at_senders,
        *edges.pair_graph,
        edges.reverse,
    )

    linears, tensor = module.linears_scalar, _stacked(module.linears_tensor)
    return scaled_embedding(ops, x, module.init_norm, linears, tensor, activation)


def update(
    ops: SimpleNamespace,
    layer: Any,
    x: Tensor,
    send: Callable[..., Tensor],
    neighbors: tuple[Tensor, ...],
    charge_factor: Tensor,
) -> Tensor:
    """Update the tensors [9, N, F] in an interaction layer.

    Messages are ``send(y, *neighbors)``, for the tensors y that each atom sends.
    """
    weights = _stacked(layer.linears_tensor[:3]), _stacked(layer.linears_tensor[3:])
    group = layer.equivariance_invariance_group
    return interact(ops, x, *weights, lambda y: send(y, *neighbors), charge_factor, group)


def _stacked(linears: list[nn.Linear]) -> Tensor:
    """Stack the weights of the three parts of tensors."""
    return torch.stack([linear.weight for linear in linears])
