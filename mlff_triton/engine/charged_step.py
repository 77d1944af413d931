"""One step of TensorNet2, forward and backward, without autograd.

It extends `mlff_triton.engine.step` by the operators in `ChargedOperators`. Charges are predicted
from tensors before their normalization, and equilibrated over each system. They enter the messages
of the next layer and, with those after the last layer, the Coulomb energy. In the backward pass,
the gradients of the charges of a layer join those of its tensors.

Parts of a system compute their own atoms only. They exchange tensors and charges of senders, and
sum charges over all parts. For particle-mesh Ewald, they also sum meshes with the charges of their
own atoms, and each of them transforms the sum. In the backward pass, loops on a CPU find gradients
for senders and return them to their owners. Kernels instead fetch the gradients of messages, as for
a TensorNet, and return only the gradients of receivers' charges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from mlff_triton.engine.charge_parameters import ChargeParameters
from mlff_triton.engine.mesh import Mesh, MeshOperator, MeshRows, with_waves
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.part import Exchange, PartBorders
from mlff_triton.engine.step import (
    Borders,
    ChargedAtoms,
    Outputs,
    Systems,
    embed,
    embedding_gradients,
    forces_and_sums,
    part_forces_and_sums,
    read_out,
)
from mlff_triton.engine.totals import Totals
from mlff_triton.kernels.tensornet.protocol import StepOperators
from mlff_triton.kernels.tensornet2.protocol import ChargedOperators
from mlff_triton.kernels.types.charges import AtomOrder, CoulombSums, EwaldField, SumParts
from mlff_triton.kernels.types.edge_rows import EdgeRows
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.prediction import Potentials


class Operators(NamedTuple):
    """Operators of a step: fused kernels or plain PyTorch."""

    network: StepOperators
    charges: ChargedOperators
    mesh: MeshOperator


class Geometry(NamedTuple):
    """Positions and edges of a batch.

    Attributes
    ----------
    positions : float64 [N, 3]
        Å, in the user's order.
    near : Edges
        Edges within the cutoff of the network.
    far : Edges, optional
        Edges within the cutoff of the Coulomb energy, if it has one.
    mesh : Mesh, optional
        Cells and their mesh, if the Coulomb energy uses particle-mesh Ewald.
    """

    positions: Tensor
    near: Edges
    far: Edges | None
    mesh: Mesh | None = None


class GatheringBorders(Borders, Protocol):
    """Rows of other processes; gradients of messages are fetched from them, too."""

    def fill_all(self, rows: Tensor) -> None:
        """Do the same as `fill` for all M rows, including those beyond the network's cutoff."""

    def rows_of(self, atoms: Tensor) -> Tensor:
        """Sum values of own atoms and ghosts, [N, Q], at their rows: [n_own + M, Q]."""

    def reduce(self, rows: Tensor) -> Tensor:
        """Sum the values of all parts for each atom: [K, n_own + M, F] -> [K, n_own, F]."""

    def total(self, values: Tensor) -> Tensor:
        """Sum values of one shape over all parts with atoms; all of them get the same bits."""


def evaluate_charged_step(
    ops: Operators,
    p: Parameters,
    systems: Systems,
    geometry: Geometry,
    status: Tensor,
    field: Potentials | None = None,
) -> Outputs:
    """Compute energies, forces, virials and charges; see `mlff_triton.engine.step.evaluate_step`.

    Parameters
    ----------
    ops : Operators
        Fused kernels or plain PyTorch.
    p : Parameters
        A TensorNet2.
    systems : Systems
        The atoms.
    geometry : Geometry
        Their positions and edges.
    status : int32 [N]
        Status bits of each atom, in the user's order.
    field : callable, optional
        Energies of the partial charges in an external field, which are added; only for models that
        predict charges. The results do not include forces at fixed charges.
    """
    assert p.charges is not None
    assert systems.charged is not None
    step = _Step(ops, p, p.charges, systems, systems.charged, geometry, field=field)
    energies, edge_grad, coulomb, uncertainty = step.evaluate()
    given = ops.network, p, systems, geometry.near, energies, edge_grad
    forces, atoms = forces_and_sums(*given, _forces_of(coulomb))
    totals = ops.network.totals(atoms, status, systems.system_ptr)
    partial = None if coulomb is None else coulomb.charges
    return Outputs(Totals(totals), forces, atoms, partial, uncertainty)


def evaluate_charged_part(
    ops: Operators,
    p: Parameters,
    systems: Systems,
    geometry: Geometry,
    n_own: int,
    borders: PartBorders | GatheringBorders,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the energies of own atoms, and the forces on all atoms that result from them.

    Parameters
    ----------
    ops, p
        Same as for `evaluate_charged_step`.
    systems : Systems
        Own atoms and ghosts, but ``system_ptr`` and ``charged`` refer to own atoms only. The energy
        offsets of ghosts must be 0.
    geometry : Geometry
        Positions and edges of all of them. Senders are rows; rows of own atoms come first. A mesh
        is that of the whole system, and the same for all parts.
    n_own : int
        Number of own atoms, which come first, with their padding.
    borders : PartBorders or GatheringBorders
        Rows of other parts; all parts compute their steps at the same time.

    Returns
    -------
    float64 [N, 3], float64 [7, N], [N] or None
        Same as `Outputs.forces`, `Outputs.atoms` and `Outputs.uncertainty`.
    """
    assert p.charges is not None
    assert systems.charged is not None
    near, far = geometry.near, geometry.far
    of_own, order, positions = near.of_first(n_own), systems.order, geometry.positions
    if isinstance(borders, PartBorders):  # opposite edges belong to other parts
        itself = torch.arange(len(near.senders), dtype=torch.int32, device=near.senders.device)
        of_own, order = of_own._replace(reverse=itself), order[:n_own]
        positions = positions[:n_own]
    far = None if far is None else far.of_first(n_own)
    own = Geometry(positions, of_own, far, geometry.mesh)
    charged = replace(systems.charged, system=systems.charged.system[:n_own])
    given = ops, p, p.charges, replace(systems, order=order), charged, own
    step = _Step(*given, borders, near)
    energies, edge_grad, coulomb, uncertainty = step.evaluate()
    found = ops.network, p, systems, near, energies, edge_grad
    return *part_forces_and_sums(*found, _forces_of(coulomb)), uncertainty


def _forces_of(coulomb: CoulombSums | None) -> tuple[Tensor, Tensor] | None:
    return None if coulomb is None else (coulomb.forces, coulomb.atoms)


class _Charges(NamedTuple):
    """Charges [N, Q], and tensors kept for the backward pass."""

    values: Tensor
    predicted: Tensor
    z1: Tensor
    z2: Tensor
    shared: Tensor


class _Kept(NamedTuple):
    """Tensors that a layer keeps for its backward pass."""

    x: Tensor
    inverse: Tensor
    y: Tensor
    terms: Tensor
    message: Tensor
    rows: EdgeRows
    delta: Tensor


class _Step(NamedTuple):
    """One step: its operators, parameters, atoms and, for a part, the edges of all atoms."""

    ops: Operators
    p: Parameters
    c: ChargeParameters
    systems: Systems
    charged: ChargedAtoms
    geometry: Geometry
    borders: PartBorders | GatheringBorders | None = None
    every: Edges | None = None
    field: Potentials | None = None

    def evaluate(self) -> tuple[Tensor, Tensor, CoulombSums | None, Tensor | None]:
        """Compute the network's energies [N], gradients [3, slots] and the Coulomb energy.

        The last result is the uncertainties of the atoms, as from `read_out`.
        """
        ops, p, edges = self.ops.network, self.p, self.geometry.near
        embedded, x, inverse = embed(ops, p, self.systems, edges)
        x, kept, charges, every = self._pass_layers(x, inverse)
        coulomb = self._interact(every)
        if coulomb is not None and self.field is not None:
            coulomb = self._in_field(coulomb, self.field)

        energies, grad, uncertainty = read_out(ops, p, x, self.systems.order)
        factor = self.systems.charge_factor
        grad_x, grad_delta = ops.readout_backward(
            grad, x, p.readout.gain, p.readout.adjoint, kept[-1].delta, factor
        )
        slope = edges.distance.new_empty(len(edges.senders))
        by_charge: list[Tensor] = []
        if coulomb is not None:
            by_charge = list(coulomb.grad_charges.split(self.c.n_charges, dim=1))
            factors = self._charge_gradients(-1, by_charge.pop(), x, None, charges[-1])
            grad_x, grad_delta = self.ops.charges.tensor_gradients(
                grad_x, None, x, None, factors, kept[-1].delta
            )
        del x
        for k in reversed(range(len(p.layers))):
            delta = kept[k - 1].delta if k else None
            grads = grad_x, grad_delta
            grad_x, grad_delta = self._return_through_layer(
                k,
                grads,
                kept.pop(),
                charges[k],
                by_charge.pop() if by_charge else None,
                delta,
                slope,
            )
        grads = self.ops.charges.scale_gradients(
            grad_x, embedded.mapped, embedded.scales, p.config.activation
        )
        edge_grad = embedding_gradients(ops, p, self.systems, edges, embedded, grads, slope)
        return energies, edge_grad, coulomb, uncertainty

    def _pass_layers(
        self, x: Tensor, inverse: Tensor
    ) -> tuple[Tensor, list[_Kept], list[_Charges], Tensor]:
        """Apply all layers; return the last tensors and the values that the backward pass needs.

        The last result is all charges [N, C] of each atom.
        """
        ops, charge_ops = self.ops.network, self.ops.charges
        every = x.new_empty(x.shape[1], len(self.c.predictions) * self.c.n_charges)
        of_layers = every.split(self.c.n_charges, dim=1)
        edges, factor = self.geometry.near, self.systems.charge_factor
        kept, charges, found = [], [], charge_ops.edge_rows(edges)
        for k, (map_in, map_out) in enumerate(self.p.layers):
            network = self.c.interactions[k]
            charges.append(self._predict(k, x, inverse, of_layers[k]))
            terms = charge_ops.charge_terms(self._extend(charges[-1].values[None])[0], network)
            y = ops.linear(x, map_in.forward, self._n_others)
            if self.borders is not None:
                self.borders.fill(y)
            message, rows = charge_ops.edge_messages(y, terms, network, edges, found)
            product = charge_ops.normalized_product(y, message, self.p.config.group)
            is_last = k + 1 == len(self.p.layers)
            delta, updated, scale = ops.update(product, map_out.forward, x, factor, not is_last)
            kept.append(_Kept(x, inverse, y, terms, message, rows, delta))
            x, inverse = updated, scale
            del product, y, message, rows, delta, updated, scale
        if self.c.coulomb is not None:
            charges.append(self._predict(-1, x, None, of_layers[-1]))
        return x, kept, charges, every

    def _predict(self, k: int, x: Tensor, inverse: Tensor | None, values: Tensor) -> _Charges:
        """Predict charges of tensors, which were normalized if ``inverse`` is given."""
        ops, atoms = self.ops.charges, self.charged
        predicted, z1, z2 = ops.predict_charges(x, inverse, self.c.predictions[k])
        systems = atoms.system, atoms.rank, self.systems.system_ptr
        options = self.c.softness_floor, self._sum_parts
        shared = ops.equilibrate(predicted, atoms.total, *systems, values, *options)
        return _Charges(values, predicted, z1, z2, shared)

    def _charge_gradients(
        self, k: int, grad: Tensor, x: Tensor, inverse: Tensor | None, charges: _Charges
    ) -> Tensor:
        """Propagate gradients [N, Q] of charges back to the invariants of tensors."""
        ops, atoms = self.ops.charges, self.charged
        kept = charges.predicted, charges.shared
        systems = atoms.system, atoms.rank, self.systems.system_ptr
        options = self.c.softness_floor, self._sum_parts
        grad = ops.equilibrate_backward(grad, *kept, *systems, *options)
        network = self.c.predictions[k]
        return ops.predict_charges_backward(grad, x, inverse, network, charges.z1, charges.z2)

    def _return_through_layer(
        self,
        k: int,
        grads: tuple[Tensor, Tensor],
        layer: _Kept,
        charges: _Charges,
        by_charge: Tensor | None,
        delta: Tensor | None,
        slope: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradients of a layer's input, and of the update before it, if any.

        Parameters
        ----------
        k : int
            Index of the layer.
        grads : [9, N, F], [9, N, F]
            Gradients of the tensors after the layer, and of its update.
        layer, charges
            Values that the layer keeps.
        by_charge : [N, Q], optional
            Gradients of the Coulomb energy by its charges.
        delta : [9, N, F], optional
            Update of the layer before it.
        slope : [slots]
            Derivatives by the distances; the layer adds its own to them.
        """
        ops, charge_ops = self.ops.network, self.ops.charges
        edges, network = self.geometry.near, self.c.interactions[k]
        map_in, map_out = self.p.layers[k]
        gathering = None if isinstance(self.borders, PartBorders) else self.borders
        grad_x, grad_delta = grads
        grad_y, grad_message = ops.product_backward(
            grad_delta,
            map_out.backward,
            layer.y,
            layer.message,
            self.systems.charge_factor,
            self.p.config.group,
            0 if gathering is None else gathering.n_others,
        )
        if gathering is not None:
            gathering.fill(grad_message)
        accumulate = k + 1 < len(self.p.layers)
        given = grad_message, layer.y, grad_y, layer.terms, network, edges, layer.rows
        grad_y, grad_sent, by_edge, by_atom = charge_ops.edge_messages_backward(
            *given, slope, accumulate
        )
        if isinstance(self.borders, PartBorders):
            grad_y, grad_sent = self.borders.reduce(grad_y), self.borders.reduce(grad_sent[None])[0]
        # Kernels find gradients of the charges of ghosts, too.
        receivers = edges if gathering is None or self.every is None else self.every
        grad_charges = charge_ops.charge_gradients(
            grad_sent, by_edge, by_atom, network, receivers, by_charge
        )
        if gathering is not None:
            grad_charges = gathering.reduce(gathering.rows_of(grad_charges)[None])[0]
        factors = self._charge_gradients(k, grad_charges, layer.x, layer.inverse, charges)
        grad = ops.linear(grad_y, map_in.backward)
        return charge_ops.tensor_gradients(grad, grad_x, layer.x, layer.inverse, factors, delta)

    def _interact(self, charges: Tensor) -> CoulombSums | None:
        """Compute the Coulomb energy of all charges [N, C] of each atom, if the model has one."""
        weights, edges, ops = self.c.coulomb, self.geometry.far, self.ops.charges
        if weights is None:
            return None
        given = charges, weights.energy, weights.mean
        if edges is None and self.borders is not None:
            assert isinstance(self.borders, PartBorders)
            return self._interact_with_all(self.borders.exchange, *given)
        if edges is None:
            order = AtomOrder(self.charged.rank, self.systems.system_ptr, self.charged.largest)
            return ops.coulomb_pairs(self.geometry.positions, *given, order)
        assert weights.field is not None
        extended = self._extend(charges[None], for_coulomb=True)[0]
        to_user = self.systems.order
        sums = ops.coulomb_edges(extended, *given[1:], edges, weights.field, to_user)
        if not isinstance(weights.field, EwaldField):
            return sums
        mesh = self.geometry.mesh
        rows = MeshRows(to_user, self.charged.system, self.systems.system_ptr)
        assert mesh is not None
        arguments = self.geometry.positions, mesh, rows, self.ops.mesh, self._sum_parts
        return with_waves(sums, charges, weights, *arguments)

    def _in_field(self, coulomb: CoulombSums, field: Potentials) -> CoulombSums:
        """Add the energies of the partial charges in a field, and their gradients."""
        assert self.c.coulomb is not None
        sums = field(coulomb.charges)
        by_row = sums.potential.index_select(0, self.systems.order)[:, None]
        grad = coulomb.grad_charges + (by_row * self.c.coulomb.mean).to(coulomb.grad_charges.dtype)
        atoms = torch.cat([(coulomb.atoms[0] + sums.energies)[None], coulomb.atoms[1:]])
        return coulomb._replace(grad_charges=grad, atoms=atoms)

    def _interact_with_all(
        self, exchange: Exchange, charges: Tensor, weights: Tensor, mean_weights: Tensor
    ) -> CoulombSums:
        """Compute the Coulomb energy of own atoms with the atoms of all parts."""
        found = exchange.gather(charges)
        positions, every = torch.cat(exchange.gather(self.geometry.positions)), torch.cat(found)
        first = sum(len(each) for each in found[: exchange.index])
        rank = torch.arange(len(every), dtype=torch.int32, device=every.device)
        ptr = torch.tensor([0, len(every)], dtype=torch.int32, device=every.device)
        order = AtomOrder(rank, ptr, len(every), slice(first, first + len(charges)))
        return self.ops.charges.coulomb_pairs(positions, every, weights, mean_weights, order)

    def _extend(self, own: Tensor, *, for_coulomb: bool = False) -> Tensor:
        """Append the tensors [K, n, F] of senders in other parts.

        Senders of the Coulomb energy may be farther away than senders of the network.
        """
        if self.borders is None:
            return own
        k, n_own, channels = own.shape
        rows = own.new_empty(k, n_own + self._n_others, channels)
        rows[:, :n_own] = own
        (self.borders.fill_all if for_coulomb else self.borders.fill)(rows)
        return rows

    @property
    def _n_others(self) -> int:
        return 0 if self.borders is None else self.borders.n_others

    @property
    def _sum_parts(self) -> SumParts | None:
        """Function that sums values over all parts, if this is a part."""
        return None if self.borders is None else self.borders.total
