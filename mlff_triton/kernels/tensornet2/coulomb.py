"""Coulomb energy of partial charges, with its gradients.

    e_i = sum_j g(d_ij) sum_c w_c q_ic q_jc      g(d) = s(d) / d
    s(d) = 1 - exp(1 - 1 / (1 - (d / 4.6)^2))    for d < 4.6 Å, or 1

over all other atoms j of a molecule, or over edges within a cutoff b. Then a reaction field with
the relative permittivity r changes g to ``s(d) (1 / d + k d^2 - c)``, where
``k (2 r + 1) b^3 = r - 1`` and ``c (2 r + 1) b = 3 r``. This is ``ScalarPlusWeightedCoulomb`` in
TorchMD-NET 3.1 (``torchmdnet/models/output_modules.py``). The weights contain half the Coulomb
constant.

The energy is the last operation of a model, so its gradients are computed with it. Pairs are not
stored: a program owns a few atoms of a system and visits all others in blocks, in the user's order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.common.hardware import exact_precision
from mlff_triton.kernels.types.charges import DAMPING, AtomOrder, ReactionField
from mlff_triton.kernels.types.edges import Edges

_DAMPING = tl.constexpr(DAMPING)
_LARGEST = tl.constexpr(1 - 1 / 128)  # squared relative distance at which the damping ends
_LOG2_E = tl.constexpr(1.4426950408889634)
_BLOCK = 32  # atoms per program, and in an iteration
_LANES = 32  # edges of an atom in an iteration


@triton.jit
def _damping(distance):
    """Return the damping of pairs at these distances, and its derivative."""
    squared = distance / _DAMPING * (distance / _DAMPING)
    near = squared < _LARGEST
    squared = tl.where(near, squared, 0.0).to(distance.dtype)
    rest = 1 - squared
    x = squared / rest
    decay = tl.where(near, tl.exp2(-_LOG2_E * x), 0.0).to(distance.dtype)
    value = 1 - decay
    if distance.dtype == tl.float32:  # no cancellation at short distances
        series = 1 - x * (1 / 5) * (1 - x * (1 / 6))
        series = 1 - x * (1 / 2) * (1 - x * (1 / 3) * (1 - x * (1 / 4) * series))
        value = tl.where(near & (x < 0.25), x * series, value)
    return value, decay * 2 * distance / (_DAMPING * _DAMPING * rest * rest)


@triton.jit
def _coulomb_pairs_kernel(
    positions_ptr,
    charges_ptr,
    weights_ptr,
    rank_ptr,
    system_ptr,
    energies_ptr,
    grad_charges_ptr,
    grad_positions_ptr,
    n_charges,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum over all pairs of some atoms. Grid: one program per system and BLOCK of its atoms.

    Reads ``positions[N, 3]``, ``charges[N, n_charges]``, ``weights[n_charges]``, ``rank[N]`` and
    ``system[B + 1]``. Writes ``energies[N]``, ``grad_charges[N, n_charges]`` and
    ``grad_positions[N, 3]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    system = tl.program_id(0)
    begin, end = tl.load(system_ptr + system), tl.load(system_ptr + system + 1)
    first = begin + tl.program_id(1) * BLOCK
    if first >= end:
        return
    dtype: tl.constexpr = charges_ptr.dtype.element_ty
    column = tl.arange(0, C)[None, :]
    atom = first + tl.arange(0, BLOCK)
    inside = atom < end
    mask = inside[:, None] & (column < n_charges)
    row = tl.load(rank_ptr + atom, inside, other=0).to(tl.int64)
    charges = tl.load(charges_ptr + row[:, None] * n_charges + column, mask, other=0.0)
    weights = tl.load(weights_ptr + column, column < n_charges, other=0.0)  # [1, C]
    place = positions_ptr + atom.to(tl.int64) * 3
    x = tl.load(place, inside, other=0.0)[:, None]
    y = tl.load(place + 1, inside, other=0.0)[:, None]
    z = tl.load(place + 2, inside, other=0.0)[:, None]

    potential = tl.zeros([BLOCK, C], tl.float64)
    gx = tl.zeros([BLOCK], tl.float64)
    gy, gz = gx, gx
    weighted = charges * weights
    for start in range(begin, end, BLOCK):
        other = start + tl.arange(0, BLOCK)
        live = other < end
        other_row = tl.load(rank_ptr + other, live, other=0).to(tl.int64)
        pointers = charges_ptr + other_row[:, None] * n_charges + column
        other_charges = tl.load(pointers, live[:, None] & (column < n_charges), other=0.0)
        place = positions_ptr + other.to(tl.int64) * 3
        dx = (x - tl.load(place, live, other=0.0)[None, :]).to(dtype)  # [BLOCK, BLOCK]
        dy = (y - tl.load(place + 1, live, other=0.0)[None, :]).to(dtype)
        dz = (z - tl.load(place + 2, live, other=0.0)[None, :]).to(dtype)
        pair = live[None, :] & inside[:, None] & (atom[:, None] != other[None, :])
        distance = tl.sqrt(tl.where(pair, dx * dx + dy * dy + dz * dz, 1.0).to(dtype))
        inverse = 1 / distance
        damping, slope = _damping(distance)
        factor = tl.where(pair, damping * inverse, 0.0).to(dtype)
        product = tl.dot(
            weighted, tl.trans(other_charges), input_precision=PRECISION, out_dtype=dtype
        )
        along = tl.where(pair, (slope - damping * inverse) * inverse * inverse * product, 0.0)
        gx += tl.sum(along * dx, axis=1).to(tl.float64)
        gy += tl.sum(along * dy, axis=1).to(tl.float64)
        gz += tl.sum(along * dz, axis=1).to(tl.float64)
        block = tl.dot(factor, other_charges, input_precision=PRECISION, out_dtype=dtype)
        potential += block.to(tl.float64)

    potential *= weights
    energies = tl.sum(potential * charges, axis=1)
    tl.store(energies_ptr + row, energies, inside)
    out = grad_charges_ptr + row[:, None] * n_charges + column
    tl.store(out, (2 * potential).to(dtype), mask)
    out = grad_positions_ptr + atom.to(tl.int64) * 3
    tl.store(out, 2 * gx, inside)
    tl.store(out + 1, 2 * gy, inside)
    tl.store(out + 2, 2 * gz, inside)


@triton.jit
def _coulomb_edges_kernel(
    charges_ptr,
    weights_ptr,
    field_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    origin_ptr,
    direction_ptr,
    distance_ptr,
    energies_ptr,
    grad_charges_ptr,
    edge_grad_ptr,
    n_charges,
    n_slots,
    C: tl.constexpr,
    LANES: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum over the edges of an atom. Grid: one program per atom.

    Reads ``charges[N, n_charges]``, ``weights[n_charges]``, ``field[3]``, and from `Edges`
    ``slot_begin[N]``, ``slot_end[N]``, ``senders[slots]``, ``origin[slots]``,
    ``direction[3, slots]`` and ``distance[slots]``. Writes ``energies[N]``,
    ``grad_charges[N, n_charges]`` and ``edge_grad[3, slots]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(slot_begin_ptr + atom), tl.load(slot_end_ptr + atom)
    dtype: tl.constexpr = charges_ptr.dtype.element_ty
    column = tl.arange(0, C)
    used = column < n_charges
    charges = tl.load(charges_ptr + atom * n_charges + column, used, other=0.0)
    weights = tl.load(weights_ptr + column, used, other=0.0)
    cutoff = tl.load(field_ptr).to(dtype)
    quadratic, constant = tl.load(field_ptr + 1).to(dtype), tl.load(field_ptr + 2).to(dtype)
    stride = tl.cast(n_slots, tl.int64)

    potential = tl.zeros([C], tl.float64)
    for start in range(begin, end, LANES):
        slot = start + tl.arange(0, LANES)
        live = slot < end
        sender = tl.load(senders_ptr + slot, live, other=0).to(tl.int64)
        pointers = charges_ptr + sender[:, None] * n_charges + column[None, :]
        other = tl.load(pointers, live[:, None] & used[None, :], other=0.0)  # [LANES, C]
        distance = tl.load(distance_ptr + slot, live, other=1.0)
        inside = live & (distance < cutoff)
        inverse = 1 / distance
        damping, slope = _damping(distance)
        bare = inverse + quadratic * distance * distance - constant
        factor = tl.where(inside, damping * bare, 0.0).to(dtype)
        slope = slope * bare + damping * (2 * quadratic * distance - inverse * inverse)
        product = tl.sum(other * (charges * weights)[None, :], axis=1)
        slope = tl.where(inside, slope * product, 0.0).to(dtype)
        potential += tl.sum(factor[:, None] * other, axis=0).to(tl.float64)
        out = edge_grad_ptr + tl.load(origin_ptr + slot, live, other=0)
        for d in tl.static_range(3):
            direction = tl.load(direction_ptr + d * stride + slot, live, other=0.0)
            tl.store(out + d * stride, slope * direction, live)

    potential *= weights
    tl.store(energies_ptr + atom, tl.sum(potential * charges))
    out = grad_charges_ptr + atom * n_charges + column
    tl.store(out, (2 * potential).to(dtype), used)


def coulomb_pairs(
    positions: Tensor, charges: Tensor, weights: Tensor, order: AtomOrder
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the Coulomb energies of molecules, over all their pairs, and the gradients.

    Parameters
    ----------
    positions : float64 [N, 3]
        In the user's order, Å.
    charges : [N, C]
        Partial charges of all layers, one row per atom.
    weights : [C]
        Weights of the charges' products, with half the Coulomb constant, eV Å.
    order : AtomOrder
        Rows of the user's atoms, and their systems.

    Returns
    -------
    energies : float64 [N]
        Half the energy between each atom and the others, eV, by row.
    grad_charges : [N, C]
        Gradients of the total energy by charges, by row.
    grad_positions : float64 [N, 3]
        Gradients of the total energy by positions, in the user's order, eV/Å.
    """
    check_device(positions, charges)
    n_atoms, n_charges = charges.shape
    energies = positions.new_empty(n_atoms)
    grad_charges, grad_positions = torch.empty_like(charges), torch.empty_like(positions)
    n_systems = len(order.system_ptr) - 1
    with torch.cuda.device_of(positions):
        _coulomb_pairs_kernel[(n_systems, max(triton.cdiv(order.largest, _BLOCK), 1))](
            positions,
            charges,
            weights,
            order.rank,
            order.system_ptr,
            energies,
            grad_charges,
            grad_positions,
            n_charges,
            C=max(triton.next_power_of_2(n_charges), 16),
            BLOCK=_BLOCK,
            PRECISION=exact_precision(charges),
            **early_launch(positions),
        )
    return energies, grad_charges, grad_positions


def coulomb_edges(
    charges: Tensor, weights: Tensor, edges: Edges, field: ReactionField
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the Coulomb energies of edges with a reaction field, and the gradients.

    Parameters
    ----------
    charges : [N, C]
        Partial charges of all layers.
    weights : [C]
        Weights of the charges' products, with half the Coulomb constant, eV Å.
    edges : Edges
        Edges that include all pairs within the cutoff of the field.
    field : ReactionField
        Cutoff and coefficients.

    Returns
    -------
    energies : float64 [N]
        Half the energy between each atom and its neighbors, eV.
    grad_charges : [N, C]
        Gradients of the total energy by charges.
    edge_grad : [3, slots]
        ``dE/dr_e``, indexed by ``edges.origin``, eV/Å.
    """
    check_device(charges)
    n_atoms, n_charges = charges.shape
    energies = charges.new_empty(n_atoms, dtype=torch.float64)
    grad_charges = torch.empty_like(charges)
    n_slots = len(edges.senders)
    edge_grad = charges.new_empty(3, n_slots)
    with torch.cuda.device_of(charges):
        _coulomb_edges_kernel[(n_atoms,)](
            charges,
            weights,
            field.constants,
            edges.slot_begin,
            edges.slot_end,
            edges.senders,
            edges.origin,
            edges.direction,
            edges.distance,
            energies,
            grad_charges,
            edge_grad,
            n_charges,
            n_slots,
            C=triton.next_power_of_2(n_charges),
            LANES=_LANES,
            **early_launch(charges),
        )
    return energies, grad_charges, edge_grad
