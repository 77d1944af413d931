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
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mlff_triton.engine.parameters import DeepHeadWeights, Parameters, ScalarHeadWeights
from mlff_triton.engine.totals import Totals
from mlff_triton.kernels.tensornet.protocol import StepOperators
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.prediction import Prediction


class Borders(Protocol):
    """Rows of tensors of atoms that other processes own; they follow the rows of own atoms.

    Attributes
    ----------
    n_others : int
        Number M of these rows.
    """

    @property
    def n_others(self) -> int:
        """Same as the attribute."""

    def fill(self, rows: Tensor) -> None:
        """Fetch the last M rows of tensors [9, n_own + M, F] from the processes that own them.

        Rows of atoms beyond the cutoff of the network become NaN.
        """


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
    charges : [N], optional
        Partial charges in elementary charges.
    uncertainty : [N], optional
        Expected errors of the forces on atoms, eV/Å. In a part, only the values of own atoms are
        set.
    """

    totals: Totals
    forces: Tensor
    atoms: Tensor
    charges: Tensor | None = None
    uncertainty: Tensor | None = None

    def clone(self) -> Outputs:
        """Return a copy."""
        some = (None if t is None else t.clone() for t in (self.charges, self.uncertainty))
        totals = Totals(self.totals.values.clone())
        return Outputs(totals, self.forces.clone(), self.atoms.clone(), *some)

    @property
    def atom_energies(self) -> Tensor:
        """Energy of each atom in eV, float64 [N]."""
        return self.atoms[0]

    @property
    def prediction(self) -> Prediction:
        """The same results for users, without copies."""
        energies, virial = self.totals.energy, self.totals.virial
        of_atoms = self.atom_energies, self.charges, self.uncertainty
        return Prediction(energies, self.forces, virial, *of_atoms)


@dataclass(frozen=True)
class ChargedAtoms:
    """Facts about the atoms of a batch that only a TensorNet2 needs, in any order.

    Attributes
    ----------
    total : float64 [B]
        Total charge of each system in elementary charges.
    system : int32 [N]
        System of each atom.
    rank : int32 [N]
        Index in this order of each of the user's atoms.
    largest : int
        Number of atoms in the largest system, or more.
    """

    total: Tensor
    system: Tensor
    rank: Tensor
    largest: int

    @classmethod
    def of(cls, charge: Tensor, system_ptr: Tensor) -> ChargedAtoms:
        """Describe atoms in the user's order; arguments as for `Systems.of`."""
        counts = system_ptr.diff().long()
        systems = torch.arange(len(counts), dtype=torch.int32, device=charge.device)
        system = systems.repeat_interleave(counts)
        rank = torch.arange(len(system), dtype=torch.int32, device=charge.device)
        largest = int(counts.max())
        if len(counts) > 1:  # batches of one size differ, and most should share a CUDA graph
            largest = min(len(system), 1 << (largest - 1).bit_length())
        return cls(charge.double(), system, rank, largest)

    def clone(self) -> ChargedAtoms:
        """Return a copy."""
        return replace(self, **{n: getattr(self, n).clone() for n in ("total", "system", "rank")})

    def copy_(self, other: ChargedAtoms) -> None:
        """Take over equally many other atoms, whose largest system is no larger."""
        for name in ("total", "system", "rank"):
            getattr(self, name).copy_(getattr(other, name))

    def sort(self, order: Tensor, out: ChargedAtoms) -> None:
        """Write the atoms from the user's order to ``out`` in another order, int32 [N]."""
        out.total.copy_(self.total)
        torch.index_select(self.system, 0, order, out=out.system)
        out.rank.index_copy_(0, order.long(), self.rank)


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
    charged : ChargedAtoms, optional
        Facts that only a TensorNet2 needs. Its charge factors are 1.
    """

    species: Tensor
    order: Tensor
    charge_factor: Tensor
    offsets: Tensor
    system_ptr: Tensor
    charged: ChargedAtoms | None = None

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
        charged = None if p.charges is None else ChargedAtoms.of(charge, system_ptr)
        factor = 1 + 0.1 * charge if charged is None else torch.ones_like(charge)
        per_system = torch.stack([factor, p.mean / (counts if totals is None else totals)])
        charge_factor, share = per_system.repeat_interleave(counts, 1, output_size=n_atoms)
        species = p.species(numbers)
        return cls(
            species=species,
            order=torch.arange(n_atoms, dtype=torch.int32, device=numbers.device),
            charge_factor=charge_factor.to(p.receiver.dtype),
            offsets=p.references[species.long()] + share,
            system_ptr=system_ptr,
            charged=charged,
        )

    def clone(self) -> Systems:
        """Return a copy that shares ``system_ptr``."""
        names = ("species", "order", "charge_factor", "offsets")
        charged = None if self.charged is None else self.charged.clone()
        return replace(self, charged=charged, **{n: getattr(self, n).clone() for n in names})

    def fits(self, other: Systems) -> bool:
        """Return True if `copy_` can take over equally many other atoms."""
        if self.charged is None or other.charged is None:
            return True
        return other.charged.largest <= self.charged.largest

    def copy_(self, other: Systems) -> None:
        """Take over equally many other atoms."""
        for name in ("species", "order", "charge_factor", "offsets", "system_ptr"):
            getattr(self, name).copy_(getattr(other, name))
        if self.charged is not None and other.charged is not None:
            self.charged.copy_(other.charged)

    def sort(self, order: Tensor, out: Systems) -> None:
        """Write the atoms to ``out`` in another order, int32 [N], without waiting."""
        out.order.copy_(order)
        for name in ("species", "charge_factor", "offsets"):
            torch.index_select(getattr(self, name), 0, order, out=getattr(out, name))
        if self.charged is not None and out.charged is not None:
            self.charged.sort(order, out.charged)


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
    energies, edge_grad, uncertainty = energies_and_edge_gradients(ops, p, systems, edges)
    forces, atoms = forces_and_sums(ops, p, systems, edges, energies, edge_grad)
    totals = ops.totals(atoms, status, systems.system_ptr)
    return Outputs(Totals(totals), forces, atoms, None, uncertainty)


def forces_and_sums(
    ops: StepOperators,
    p: Parameters,
    systems: Systems,
    edges: Edges,
    energies: Tensor,
    edge_grad: Tensor,
    others: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return forces [N, 3], and energies and virials of atoms [7, N], in the user's order.

    The network's energies [N] and gradients along the edges [3, slots] are given. Nuclear repulsion
    is added to both, and the energies of isolated atoms to the energies. If results of another
    energy are given, everything is added to them.
    """
    offsets = systems.offsets
    for nuclei in p.nuclei:
        offsets = offsets + ops.repulsion(edge_grad, systems.species, nuclei, edges)
    return ops.forces(edge_grad, edges, energies, offsets, systems.order, False, others)


def evaluate_part(
    ops: StepOperators,
    p: Parameters,
    systems: Systems,
    edges: Edges,
    status: Tensor,
    rows: Sequence[int],
    borders: Borders | None = None,
) -> Outputs:
    """Compute the energies of the first atoms, their virial, and the forces on all atoms.

    Parameters
    ----------
    ops, p, systems, edges, status
        Same as for `evaluate_step`. The energy offsets of all other atoms must be 0.
    rows : sequence of int
        ``rows[h]`` is the number of atoms, the first ones, that are at most h hops along edges away
        from one whose energy counts, for each h up to the number of layers.
    borders : Borders, optional
        Tensors of other senders, which follow the ``rows[0]`` own atoms. If given, only own atoms
        are computed, and all ``rows`` are equal.
    """
    found = energies_and_edge_gradients(ops, p, systems, edges, rows, borders)
    own, edge_grad, uncertainty = found
    forces, atoms = part_forces_and_sums(ops, p, systems, edges, own, edge_grad)
    totals = ops.totals(atoms, status, systems.system_ptr)
    return Outputs(Totals(totals), forces, atoms, None, uncertainty)


def part_forces_and_sums(
    ops: StepOperators,
    p: Parameters,
    systems: Systems,
    edges: Edges,
    own: Tensor,
    edge_grad: Tensor,
    others: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Do the same as `forces_and_sums` for a part, given the energies of its own atoms.

    Results of another energy are also for own atoms, or for all atoms.
    """
    n_own, energies = len(own), systems.offsets.clone()
    energies[:n_own] += own
    for nuclei in p.nuclei:
        near = edges.of_first(n_own)
        energies[:n_own] += ops.repulsion(edge_grad, systems.species, nuclei, near)
    nothing = own.new_zeros(len(energies))
    forces, atoms = ops.forces(edge_grad, edges, nothing, energies, systems.order, True)
    if others is not None:
        n_others = len(others[0])
        forces[:n_others] += others[0]
        atoms[:, :n_others] += others[1]
    return forces, atoms


class Embedded(NamedTuple):
    """Tensors that the embedding keeps for its backward pass."""

    x0: Tensor
    norm: Tensor
    hidden: Tensor
    scales: Tensor
    mapped: Tensor


def embed(
    ops: StepOperators, p: Parameters, systems: Systems, edges: Edges
) -> tuple[Embedded, Tensor, Tensor]:
    """Embed the atoms; also return normalized tensors [9, N, F] and their inverse norms [N, F]."""
    tables, w, activation = p.tables, p.scalar, p.config.activation
    pairs = systems.species, p.receiver, p.sender, tables.embedding
    x0, norm = ops.tensor_embedding(*pairs, tables.embedding_self, edges)
    hidden, scales = ops.scalar_network(
        norm, w.gain, w.shift, w.weight1, w.bias1, w.weight2, w.bias2, activation
    )
    mapped, x, inverse = ops.embed(x0, p.embedding.forward, scales, activation)
    return Embedded(x0, norm, hidden, scales, mapped), x, inverse


def embedding_gradients(
    ops: StepOperators,
    p: Parameters,
    systems: Systems,
    edges: Edges,
    embedded: Embedded,
    grads: tuple[Tensor, Tensor],
    slope: Tensor,
) -> Tensor:
    """Compute the gradients along the edges.

    Parameters
    ----------
    ops, p, systems, edges
        Same as for `evaluate_step`.
    embedded : Embedded
        From `embed`.
    grads : [9, N, F], [N, 3, F]
        Gradients of the mapped tensors and of their scales.
    slope : [slots]
        Derivatives by the distances, through the messages.

    Returns
    -------
    [3, slots]
    """
    w, (grad_mapped, grad_scales) = p.scalar, grads
    kept = embedded.norm, w.gain, w.adjoint1, w.adjoint2, embedded.hidden
    grad_norm = ops.scalar_network_backward(grad_scales, *kept, p.config.activation)
    grad_x0 = ops.embed_input_backward(grad_mapped, p.embedding.backward, embedded.x0, grad_norm)
    pairs = systems.species, p.receiver, p.sender, p.tables.embedding
    return ops.tensor_embedding_backward(grad_x0, *pairs, edges, slope)


def energies_and_edge_gradients(
    ops: StepOperators,
    p: Parameters,
    systems: Systems,
    edges: Edges,
    rows: Sequence[int] | None = None,
    borders: Borders | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute energies [N], gradients per edge [3, slots] and uncertainties [N] of the network.

    Uncertainties, if the model has them, are in the user's order.

    Tensors are deleted as soon as the backward pass no longer needs them. With two layers, at most
    about thirteen tensors [9, N, F] are alive at once.

    The energies of a part's own atoms need tensors of the last layer for these atoms only. They
    need tensors of the layer before for the neighbors too, and so on: see `evaluate_part` for
    ``rows``. So each operator computes fewer atoms than the one before. Its adjoint computes the
    same atoms. Where other processes compute these neighbors, ``borders`` are what they send: their
    tensors before messages are summed, and gradients of their messages in the backward pass.
    """
    others = 0 if borders is None else borders.n_others
    tables, charge_factor, group = p.tables, systems.charge_factor, p.config.group
    # Edges of the atoms that each layer, counted from the last one, takes as its input
    hops = [edges] * (len(p.layers) + 1) if rows is None else [edges.of_first(n) for n in rows]
    embedded, x, inverse = embed(ops, p, systems, hops[-1])
    kept = []
    radial = list(zip(tables.layers, tables.layer_self, strict=True))
    for k, ((map_in, map_out), factors) in enumerate(zip(p.layers, radial, strict=True)):
        y = ops.linear(x, map_in.forward, others)
        if borders is not None:
            borders.fill(y)
        is_last = k + 1 == len(p.layers)
        near = hops[len(p.layers) - 1 - k]
        message, product = ops.message_product(y, *factors, near, charge_factor, group)
        delta, updated, scale = ops.update(product, map_out.forward, x, charge_factor, not is_last)
        kept.append(Kept(x, inverse, y, message, delta))
        x, inverse = updated, scale
        del product, y, message, delta, updated, scale

    energies, grad, uncertainty = read_out(ops, p, x, systems.order)
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
            grad_delta, map_out.backward, layer.y, layer.message, charge_factor, group, others
        )
        del grad_delta
        if borders is not None:
            borders.fill(grad_message)
        grad_y = ops.message_backward(
            grad_message, layer.y, grad_y, *radial[k], near, slope, k + 1 < len(p.layers)
        )
        del grad_message
        given = grad_y, map_in.backward, grad_x, layer.x, layer.inverse
        if kept:
            grad_x, grad_delta = ops.update_backward(*given, kept[-1].delta, charge_factor)  # noqa: RUF059 (used in the next iteration)
        else:
            of_embedding = embedded.mapped, embedded.scales, p.config.activation
            grads = ops.embed_backward(*given, *of_embedding)
        del layer, grad_y, given

    del grad_x
    edge_grad = embedding_gradients(ops, p, systems, hops[-1], embedded, grads, slope)
    return energies, edge_grad, uncertainty


def read_out(
    ops: StepOperators, p: Parameters, x: Tensor, order: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute energies [N] from the last tensors, and their gradients [N, F] by hidden values.

    The last result is the uncertainties of the atoms in the user's order, if the model has them.
    """
    r, head = p.readout, p.head
    hidden = ops.readout(x, r.gain, r.shift, r.weight, r.bias)
    first = p.config.activation if p.config.readout_activation else "none"
    known = p.deviations, order
    if isinstance(head, ScalarHeadWeights):
        weights = head.weight1, head.bias1, head.adjoint1, head.weight2, head.bias2
        return ops.scalar_head(hidden, *weights, first, p.config.activation, *known)
    if isinstance(head, DeepHeadWeights):
        return ops.deep_head(hidden, head.maps, first, p.config.activation, *known)
    return ops.gated_head(hidden, head.values, head.gates, head.scale, first, *known)
