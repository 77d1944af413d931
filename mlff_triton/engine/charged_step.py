"""The network of TensorNet2 in one step, forward and backward, without autograd.

It is the sequence of operators of `mlff_triton.engine.step`, with other messages, the prediction
and equilibration of charges after the embedding and after each layer, and their Coulomb energy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.engine.charged_parameters import ChargedParameters
from mlff_triton.kernels.tensornet.protocol import StepOperators
from mlff_triton.kernels.tensornet2.protocol import ChargedOperators
from mlff_triton.kernels.types.charge_network import ChargeNetwork
from mlff_triton.kernels.types.charges import AtomOrder
from mlff_triton.kernels.types.edges import Edges


@dataclass(frozen=True)
class ChargedSystems:
    """The atoms of a batch, in the order of the features, and the user's order.

    Attributes
    ----------
    species, systems : int32 [N]
        Element and system of each row.
    totals : float64 [B]
        Total charge of each system, elementary charges.
    order : AtomOrder
        Rows of the user's atoms, and their systems.
    """

    species: Tensor
    systems: Tensor
    totals: Tensor
    order: AtomOrder

    @property
    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of the equilibration."""
        return self.systems, self.order.rank, self.order.system_ptr


class ChargedOutputs(NamedTuple):
    """Results of the network, by row.

    Attributes
    ----------
    energies : float64 [N]
        Energies of atoms with the Coulomb energy, eV.
    edge_grad : [3, slots]
        Gradients along the edges of the network, indexed by their origins, eV/Å.
    coulomb_grad : float64 [N, 3] or [3, slots]
        Gradients of the Coulomb energy: by positions, in the user's order, without a cutoff; along
        the Coulomb edges with one. eV/Å.
    charges : [N, (layers + 1) Q]
        Charges of all layers.
    """

    energies: Tensor
    edge_grad: Tensor
    coulomb_grad: Tensor
    charges: Tensor


class _State(NamedTuple):
    """Tensors after the embedding or a layer, and the prediction of their charges."""

    x: Tensor
    inverse: Tensor | None
    predicted: Tensor
    hidden: tuple[Tensor, Tensor]
    shared: Tensor


class _Kept(NamedTuple):
    """Tensors that a layer keeps for its backward pass."""

    terms: Tensor
    y: Tensor
    message: Tensor
    delta: Tensor


def charged_energies_and_gradients(
    ops: StepOperators,
    charged: ChargedOperators,
    p: ChargedParameters,
    systems: ChargedSystems,
    edges: Edges,
    positions: Tensor,
    coulomb_edges: Edges | None,
) -> ChargedOutputs:
    """Compute energies and their gradients.

    Parameters
    ----------
    ops, charged : StepOperators, ChargedOperators
        Fused kernels, or plain PyTorch.
    p : ChargedParameters
        The model.
    systems : ChargedSystems
        The atoms.
    edges : Edges
        Edges within the cutoff of the network.
    positions : float64 [N, 3]
        In the user's order, Å.
    coulomb_edges : Edges, optional
        Edges within the Coulomb cutoff, if there is one.
    """
    ones = torch.ones_like(p.receiver[:1, 0]).expand(len(systems.species)).contiguous()
    pairs = systems.species, p.receiver, p.sender, p.table
    x0, norm = ops.tensor_embedding(*pairs, p.own, edges)
    w = p.scalar
    hidden, scales = ops.scalar_network(
        norm, w.gain, w.shift, w.weight1, w.bias1, w.weight2, w.bias2, p.activation
    )
    mapped, x, inverse = ops.embed(x0, p.embedding.forward, scales, p.activation)
    state, charges = _predict(charged, x, inverse, p.charges[0], systems)

    states, every, kept = [state], [charges], []
    for k, (map_in, map_out) in enumerate(p.layers):
        is_last = k + 1 == len(p.layers)
        terms = charged.charge_terms(charges, p.interactions[k])
        y = ops.linear(x, map_in.forward)
        message = charged.edge_messages(y, terms, p.interactions[k], edges)
        product = charged.normalized_product(y, message, p.group)
        delta, x, inverse = ops.update(product, map_out.forward, x, ones, not is_last)
        kept.append(_Kept(terms, y, message, delta))
        scale = None if is_last else inverse
        state, charges = _predict(charged, x, scale, p.charges[k + 1], systems)
        states.append(state)
        every.append(charges)

    hidden_out = ops.readout(x, p.readout.gain, p.readout.shift, p.readout.weight, p.readout.bias)
    head = p.head.weight1, p.head.bias1, p.head.adjoint1, p.head.weight2, p.head.bias2
    energies, grad = ops.scalar_head(hidden_out, *head, p.activation, p.activation)
    all_charges = torch.cat(every, dim=1)
    if p.field is None:
        found = charged.coulomb_pairs(positions, all_charges, p.charge_weights, systems.order)
    else:
        assert coulomb_edges is not None, "a Coulomb cutoff needs edges"
        found = charged.coulomb_edges(all_charges, p.charge_weights, coulomb_edges, p.field)
    coulomb, grad_charges, coulomb_grad = found
    by_layer = [part.contiguous() for part in grad_charges.tensor_split(len(every), dim=1)]

    grad, _ = ops.readout_backward(grad, x, p.readout.gain, p.readout.adjoint, kept[-1].delta, ones)
    residual: Tensor | None = None
    slope = edges.distance.new_empty(len(edges.senders))
    for k in reversed(range(len(p.layers))):
        map_in, map_out = p.layers[k]
        layer, network = kept.pop(), p.interactions[k]
        factors = _predict_backward(
            charged, by_layer[k + 1], states.pop(), p.charges[k + 1], systems
        )
        residual, grad_delta = charged.tensor_gradients(grad, residual, *factors, layer.delta)
        grad_y, grad_message = ops.product_backward(
            grad_delta, map_out.backward, layer.y, layer.message, ones, p.group
        )
        grad_y, grad_sent, by_edge, by_atom = charged.edge_messages_backward(
            grad_message, layer.y, grad_y, layer.terms, network, edges, slope, k + 1 < len(p.layers)
        )
        by_layer[k] += charged.charge_gradients(grad_sent, by_edge, by_atom, network, edges)
        del by_edge
        grad = ops.linear(grad_y, map_in.backward)

    factors = _predict_backward(charged, by_layer[0], states.pop(), p.charges[0], systems)
    grad, _ = charged.tensor_gradients(grad, residual, *factors, None)
    grad_mapped, grad_scales = charged.scale_gradients(grad, mapped, scales, p.activation)
    grad_norm = ops.scalar_network_backward(
        grad_scales, norm, w.gain, w.adjoint1, w.adjoint2, hidden, p.activation
    )
    grad_x0 = ops.embed_input_backward(grad_mapped, p.embedding.backward, x0, grad_norm)
    edge_grad = ops.tensor_embedding_backward(grad_x0, *pairs, edges, slope)
    return ChargedOutputs(energies.double() + coulomb, edge_grad, coulomb_grad, all_charges)


def _predict(
    charged: ChargedOperators,
    x: Tensor,
    inverse: Tensor | None,
    network: ChargeNetwork,
    systems: ChargedSystems,
) -> tuple[_State, Tensor]:
    """Predict the charges of tensors, and equilibrate them."""
    predicted, z1, z2 = charged.predict_charges(x, inverse, network)
    charges, shared = charged.equilibrate(predicted, systems.totals, *systems.batch)
    return _State(x, inverse, predicted, (z1, z2), shared), charges


def _predict_backward(
    charged: ChargedOperators,
    grad: Tensor,
    state: _State,
    network: ChargeNetwork,
    systems: ChargedSystems,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return tensors, the factors of their normalization, and gradients of their invariants."""
    by_prediction = charged.equilibrate_backward(
        grad, state.predicted, state.shared, *systems.batch
    )
    factors = charged.predict_charges_backward(
        by_prediction, state.x, state.inverse, network, *state.hidden
    )
    return state.x, state.inverse, factors
