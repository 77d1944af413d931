"""One step of TensorNet, forward and backward, without autograd.

A step is a fixed sequence of operators, `StepOperators`: fused Triton kernels
(`mlff_triton.kernels.tensornet.operators`) or plain PyTorch
(`mlff_triton.kernels.tensornet.reference.operators`). Radial networks are tables, and sums run over
sorted edges, so two runs agree to the bit.

The adjoints follow from https://arxiv.org/abs/2306.06482, eqs. 5-13. Both sets of operators are
tested against `mlff_triton.model.tensornet.TensorNet` in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.engine.parameters import Parameters, ScalarHeadWeights
from mlff_triton.engine.totals import Totals
from mlff_triton.kernels.tensornet.protocol import StepOperators
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.prediction import Prediction


class Outputs(NamedTuple):
    """Results of a step, in the user's order of atoms.

    Attributes
    ----------
    totals : Totals
        Energy, virial and highest status of each system.
    forces : float64 [N, 3]
        eV/Å.
    atoms : float64 [7, N]
        Energy of each atom, and its share in the virial: the components xx, yy, zz, yz, xz and xy,
        eV.
    """

    totals: Totals
    forces: Tensor
    atoms: Tensor

    @property
    def atom_energies(self) -> Tensor:
        """Energy of each atom in eV, float64 [N]."""
        return self.atoms[0]

    @property
    def prediction(self) -> Prediction:
        """The same results for users, without copies."""
        totals = self.totals
        return Prediction(totals.energy, self.forces, totals.virial, self.atom_energies)


@dataclass(frozen=True)
class Systems:
    """The atoms of a batch, except for their positions and cells, in any order.

    Attributes
    ----------
    species : int32 [N]
        Element of each atom.
    order : int32 [N]
        The user's index of each atom, in the same order.
    charge_factor : [N]
        ``1 + 0.1 q`` for the total charge ``q`` of each atom's system, in the same order.
    offsets : float64 [N]
        Energy of each atom that does not come from the network, in the same order, eV.
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
        cls,
        p: Parameters,
        numbers: Tensor,
        charge: Tensor,
        system_ptr: Tensor,
        totals: Tensor | None = None,
    ) -> Systems:
        """Look up the species, charge factors and energy offsets of atoms, in the user's order.

        Parameters
        ----------
        p : Parameters
            The model.
        numbers : int64 [N]
            Atomic numbers.
        charge : float64 [B]
            Total charge of each system in elementary charges.
        system_ptr : int32 [B + 1]
            Same as the attribute.
        totals : int64 [B], optional
            Number of atoms in each system, if not all of them are given.

        Raises
        ------
        UnknownElementError
            If the model was not made for an element.
        """
        n_atoms, counts = len(numbers), system_ptr.diff().long()
        per_system = torch.stack(
            [1 + 0.1 * charge, p.mean / (counts if totals is None else totals)]
        )
        charge_factor, share = per_system.repeat_interleave(counts, 1, output_size=n_atoms)
        species = p.species(numbers)
        return cls(
            species=species,
            order=torch.arange(n_atoms, dtype=torch.int32, device=numbers.device),
            charge_factor=charge_factor.to(p.receiver.dtype),
            offsets=p.references[species.long()] + share,
            system_ptr=system_ptr,
        )

    def clone(self) -> Systems:
        """Return a copy that shares ``system_ptr``."""
        names = ("species", "order", "charge_factor", "offsets")
        return replace(self, **{name: getattr(self, name).clone() for name in names})

    def copy_(self, other: Systems) -> None:
        """Take over the atoms of as many others."""
        for name, tensor in vars(other).items():
            getattr(self, name).copy_(tensor)

    def sort(self, order: Tensor, out: Systems) -> None:
        """Write the atoms to ``out`` in another order, int32 [N], without waiting."""
        out.order.copy_(order)
        for name in ("species", "charge_factor", "offsets"):
            torch.index_select(getattr(self, name), 0, order, out=getattr(out, name))


class Kept(NamedTuple):
    """Tensors that a layer keeps for its backward pass."""

    x: Tensor
    inverse: Tensor
    y: Tensor
    message: Tensor
    delta: Tensor


def evaluate_step(
    ops: StepOperators, p: Parameters, systems: Systems, edges: Edges, status: Tensor
) -> Outputs:
    """Compute energies, forces and virials.

    Parameters
    ----------
    ops : StepOperators
        Fused kernels or plain PyTorch.
    p : Parameters
        The model.
    systems : Systems
        The atoms.
    edges : Edges
        Their edges within the cutoff.
    status : int32 [N]
        Status bits of each atom, in the user's order.
    """
    energies, edge_grad = energies_and_edge_gradients(ops, p, systems, edges)
    offsets = systems.offsets
    if p.nuclei is not None:
        # also adds to edge_grad
        offsets = offsets + ops.repulsion(edge_grad, systems.species, p.nuclei, edges)
    forces, atoms = ops.forces(edge_grad, edges, energies, offsets, systems.order)
    totals = ops.totals(atoms, status, systems.system_ptr)
    return Outputs(Totals(totals), forces, atoms)


def evaluate_part(
    ops: StepOperators,
    p: Parameters,
    systems: Systems,
    edges: Edges,
    status: Tensor,
    rows: Sequence[int],
) -> Outputs:
    """Compute the energies of the first atoms, their virial, and the forces on all atoms.

    Parameters
    ----------
    ops, p, systems, edges, status
        Same as for `evaluate_step`. The energy offsets of all other atoms must be 0.
    rows : sequence of int
        ``rows[h]`` is the number of atoms, the first ones, that are at most h hops along edges away
        from one whose energy counts, for each h up to the number of layers.
    """
    own, edge_grad = energies_and_edge_gradients(ops, p, systems, edges, rows)
    energies = systems.offsets.clone()
    energies[: rows[0]] += own
    if p.nuclei is not None:
        near = edges.of_first(rows[0])
        energies[: rows[0]] += ops.repulsion(edge_grad, systems.species, p.nuclei, near)
    nothing = own.new_zeros(len(energies))
    forces, atoms = ops.forces(edge_grad, edges, nothing, energies, systems.order, True)
    totals = ops.totals(atoms, status, systems.system_ptr)
    return Outputs(Totals(totals), forces, atoms)


def energies_and_edge_gradients(
    ops: StepOperators,
    p: Parameters,
    systems: Systems,
    edges: Edges,
    rows: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the network's energies per atom [N] and their gradients per edge [3, slots].

    Tensors are deleted as soon as the backward pass no longer needs them. With two layers, at most
    about thirteen tensors [9, N, F] are alive at once.

    The energies of a part's own atoms need the tensors of the last layer of these atoms only, those
    of the layer before of their neighbors too, and so on: see `evaluate_part` for ``rows``. So each
    operator computes fewer atoms than the one before, and its adjoint as many as itself.
    """
    config, tables, charge_factor = p.config, p.tables, systems.charge_factor
    activation, group = config.activation, config.group
    pairs = systems.species, p.receiver, p.sender, tables.embedding
    # Edges of the atoms that each layer, counted from the last one, takes as its input
    hops = [edges] * (len(p.layers) + 1) if rows is None else [edges.of_first(n) for n in rows]

    x0, norm = ops.tensor_embedding(*pairs, tables.embedding_self, hops[-1])
    w = p.scalar
    hidden, scales = ops.scalar_network(
        norm, w.gain, w.shift, w.weight1, w.bias1, w.weight2, w.bias2, activation
    )
    mapped, x, inverse = ops.embed(x0, p.embedding.forward, scales, activation)

    kept = []
    radial = list(zip(tables.layers, tables.layer_self, strict=True))
    for k, ((map_in, map_out), factors) in enumerate(zip(p.layers, radial, strict=True)):
        y = ops.linear(x, map_in.forward)
        is_last = k + 1 == len(p.layers)
        near = hops[len(p.layers) - 1 - k]
        message, product = ops.message_product(y, *factors, near, charge_factor, group)
        delta, updated, scale = ops.update(product, map_out.forward, x, charge_factor, not is_last)
        kept.append(Kept(x, inverse, y, message, delta))
        x, inverse = updated, scale
        del product, y, message, delta, updated, scale

    energies, grad = _read_out(ops, p, x)
    grad_x, grad_delta = ops.readout_backward(
        grad, x, p.readout.gain, p.readout.adjoint, kept[-1].delta, charge_factor
    )
    del x

    n_slots = len(edges.senders)
    slope = edges.distance.new_empty(n_slots) if rows is None else edges.distance.new_zeros(n_slots)
    for k in reversed(range(len(p.layers))):
        map_in, map_out = p.layers[k]
        layer, near = kept.pop(), hops[len(p.layers) - k]
        grad_y, grad_message = ops.product_backward(
            grad_delta, map_out.backward, layer.y, layer.message, charge_factor, group
        )
        del grad_delta
        grad_y = ops.message_backward(
            grad_message, layer.y, grad_y, *radial[k], near, slope, k + 1 < len(p.layers)
        )
        del grad_message
        given = grad_y, map_in.backward, grad_x, layer.x, layer.inverse
        if kept:
            grad_x, grad_delta = ops.update_backward(*given, kept[-1].delta, charge_factor)  # noqa: RUF059 (used in the next iteration)
        else:
            grad_mapped, grad_scales = ops.embed_backward(*given, mapped, scales, activation)
        del layer, grad_y, given

    del grad_x, mapped
    grad_norm = ops.scalar_network_backward(
        grad_scales, norm, w.gain, w.adjoint1, w.adjoint2, hidden, activation
    )
    grad_x0 = ops.embed_input_backward(grad_mapped, p.embedding.backward, x0, grad_norm)
    return energies, ops.tensor_embedding_backward(grad_x0, *pairs, hops[-1], slope)


def _read_out(ops: StepOperators, p: Parameters, x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute energies [N] from the last tensors, and their gradients [N, F] by hidden values."""
    r, head = p.readout, p.head
    hidden = ops.readout(x, r.gain, r.shift, r.weight, r.bias)
    first = p.config.activation if p.config.readout_activation else "none"
    if isinstance(head, ScalarHeadWeights):
        weights = head.weight1, head.bias1, head.adjoint1, head.weight2, head.bias2
        energies, grad = ops.scalar_head(hidden, *weights, first, p.config.activation)
    else:
        energies, grad = ops.gated_head(hidden, head.values, head.gates, head.scale, first)
    return energies, grad
