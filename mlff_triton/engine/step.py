"""One step of TensorNet, forward and backward, without autograd.

A step is a fixed sequence of operators, forward and backward, over one of two op sets: fused
Triton kernels (`kernels.step`) or plain PyTorch (`kernels.reference.step`). Radial networks are
tables, sums run over sorted edges, so nothing is left to chance: two runs agree to the bit.

The adjoints follow from https://arxiv.org/abs/2306.06482, eqs. 5-13; the truth that both op sets
are held to is `tensornet.TensorNet` in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.engine.parameters import Parameters, ScalarHeadWeights
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.prediction import Prediction


class Outputs(NamedTuple):
    """What a step computes, in the user's order of atoms.

    Attributes
    ----------
    totals : float64 [B, 11]
        Energy and virial (row by row) in eV, and the highest status of any atom.
    forces : float64 [N, 3]
        eV/Å.
    atom_energies : float64 [N]
        eV.
    """

    totals: Tensor
    forces: Tensor
    atom_energies: Tensor

    @property
    def status(self) -> Tensor:
        """Highest status of each system's atoms, see `kernels.edges`, float64 [B]."""
        return self.totals[:, 10]

    @property
    def prediction(self) -> Prediction:
        """The same numbers as users know them; not copies."""
        virial = self.totals[:, 1:10].unflatten(1, (3, 3))
        return Prediction(self.totals[:, 0], self.forces, virial, self.atom_energies)


@dataclass(frozen=True)
class Systems:
    """The atoms of a batch, apart from where they are.

    Attributes
    ----------
    species : int32 [N]
        Element of each atom, in the order that the edges are for.
    order : int32 [N]
        The user's index of each atom.
    charge_factor : [N]
        ``1 + 0.1 q`` of each atom's system, likewise.
    offsets : float64 [N]
        Energy of each atom apart from the network's, likewise, eV.
    system_ptr : int32 [B + 1]
        First atom of each system, in the user's order.
    """

    species: Tensor
    order: Tensor
    charge_factor: Tensor
    offsets: Tensor
    system_ptr: Tensor

    @classmethod
    def of(
        cls, p: Parameters, numbers: Tensor, charge: Tensor, system_ptr: Tensor, order: Tensor
    ) -> Systems:
        """Look up what a model has for atoms.

        Parameters
        ----------
        p : Parameters
            The model.
        numbers : int64 [N]
            Atomic numbers, in the user's order.
        charge : float64 [B]
            Total charge of each system.
        system_ptr, order
            As above.

        Raises
        ------
        UnknownElementError
            If the model was not made for an element.
        """
        counts, sorted_atoms = system_ptr.diff().long(), order.long()
        per_system = torch.stack([1 + 0.1 * charge, p.mean / counts])
        factor, share = per_system.repeat_interleave(counts, 1, output_size=len(numbers))
        species = p.species(numbers)
        return cls(
            species=species[sorted_atoms],
            order=order,
            charge_factor=factor[sorted_atoms].to(p.receiver.dtype),
            offsets=(p.references[species.long()] + share)[sorted_atoms],
            system_ptr=system_ptr,
        )


class Kept(NamedTuple):
    """What a layer keeps for its backward pass."""

    x: Tensor
    inverse: Tensor
    y: Tensor
    message: Tensor
    delta: Tensor


def step(ops: Any, p: Parameters, systems: Systems, edges: Edges, status: Tensor) -> Outputs:
    """Energies, forces and virials.

    Parameters
    ----------
    ops : module
        `kernels.step` or `kernels.reference.step`.
    p : Parameters
        The model.
    systems, edges, status
        The atoms, their edges within the cutoff, and what is wrong with them.
    """
    energies, edge_grad = energies_and_edge_gradients(ops, p, systems, edges)
    offsets = systems.offsets
    if p.nuclei is not None:
        # adds to edge_grad, too
        offsets = offsets + ops.repulsion(edge_grad, systems.species, p.nuclei, edges)
    forces, atoms = ops.forces(edge_grad, edges, energies, offsets, systems.order)
    totals = ops.totals(atoms, status, systems.system_ptr)
    return Outputs(totals, forces, atoms[0])


def energies_and_edge_gradients(
    ops: Any, p: Parameters, systems: Systems, edges: Edges
) -> tuple[Tensor, Tensor]:
    """Energies [N] that the network gives the atoms, and their gradients [3, slots] by edge.

    Tensors are let go as soon as the backward pass is through with them: at the peak about thirteen
    of [9, N, F] are alive with two layers.
    """
    config, tables, charge = p.config, p.tables, systems.charge_factor
    activation, group = config.activation, config.group
    pairs = systems.species, p.receiver, p.sender, tables.embedding

    x0, norm = ops.tensor_embedding(*pairs, tables.embedding_self, edges)
    w = p.scalar
    hidden, scales = ops.scalar_network(
        norm, w.gain, w.shift, w.weight1, w.bias1, w.weight2, w.bias2, activation
    )
    mapped, x, inverse = ops.embed(x0, p.embedding.forward, scales, activation)

    kept = []
    radial = list(zip(tables.layers, tables.layer_self, strict=True))
    for k, ((map_in, map_out), factors) in enumerate(zip(p.layers, radial, strict=True)):
        y = ops.linear(x, map_in.forward)
        message, product = ops.message_product(y, *factors, edges, charge, group)
        is_last = k + 1 == len(p.layers)
        delta, updated, scale = ops.update(product, map_out.forward, x, charge, not is_last)
        kept.append(Kept(x, inverse, y, message, delta))
        x, inverse = updated, scale
        del product, y, message, delta, updated, scale

    energies, grad = _read_out(ops, p, x)
    grad_x, grad_delta = ops.readout_backward(
        grad, x, p.readout.gain, p.readout.adjoint, kept[-1].delta, charge
    )
    del x

    slope = edges.distance.new_empty(len(edges.senders))
    for k in reversed(range(len(p.layers))):
        map_in, map_out = p.layers[k]
        layer = kept.pop()
        grad_y, grad_message = ops.product_backward(
            grad_delta, map_out.backward, layer.y, layer.message, charge, group
        )
        del grad_delta
        grad_y = ops.message_backward(
            grad_message, layer.y, grad_y, *radial[k], edges, slope, k + 1 < len(p.layers)
        )
        del grad_message
        given = grad_y, map_in.backward, grad_x, layer.x, layer.inverse
        if kept:
            grad_x, grad_delta = ops.update_backward(*given, kept[-1].delta, charge)  # noqa: RUF059 (of the next round)
        else:
            grad_mapped, grad_scales = ops.embed_backward(*given, mapped, scales, activation)
        del layer, grad_y, given

    del grad_x, mapped
    grad_norm = ops.scalar_network_backward(
        grad_scales, norm, w.gain, w.adjoint1, w.adjoint2, hidden, activation
    )
    grad_x0 = ops.embed_input_backward(grad_mapped, p.embedding.backward, x0, grad_norm)
    return energies, ops.tensor_embedding_backward(grad_x0, *pairs, edges, slope)


def _read_out(ops: Any, p: Parameters, x: Tensor) -> tuple[Tensor, Tensor]:
    """Energies [N] of the last tensors, and their derivatives [N, F] by the hidden values."""
    r, head = p.readout, p.head
    hidden = ops.readout(x, r.gain, r.shift, r.weight, r.bias)
    first = p.config.activation if p.config.readout_activation else "none"
    if isinstance(head, ScalarHeadWeights):
        weights = head.weight1, head.bias1, head.adjoint1, head.weight2, head.bias2
        energies, grad = ops.scalar_head(hidden, *weights, first, p.config.activation)
    else:
        energies, grad = ops.gated_head(hidden, head.values, head.gates, head.scale, first)
    return energies, grad
