"""Coulomb energy of partial charges, with its gradients.

    e_i = sum_j g(d_ij) sum_c w_c q_ic q_jc      g(d) = s(d) / d
    s(d) = 1 - exp(1 - 1 / (1 - (d / 4.6)^2))    for d < 4.6 Å, or 1

over all other atoms j of a molecule, or over edges within a cutoff b. Then a reaction field with
the relative permittivity r changes g to ``s(d) (1 / d + k d^2 - c)``, where
``k (2 r + 1) b^3 = r - 1`` and ``c (2 r + 1) b = 3 r``. This is ``ScalarPlusWeightedCoulomb`` in
TorchMD-NET 3.1 (``torchmdnet/models/output_modules.py``). The weights contain half the Coulomb
constant. In an Ewald sum of the splitting parameter ``a``, pairs have the energy
``(erfc(a d) - exp(1 - 1 / (1 - (d / 4.6)^2))) / d``, and a mesh the rest.

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
from mlff_triton.kernels.common.hardware import register_limit
from mlff_triton.kernels.numerics.error_function import erfc
from mlff_triton.kernels.numerics.exponential import LOG2_E
from mlff_triton.kernels.numerics.product import exact_precision
from mlff_triton.kernels.tensornet2.launch_sizes import coulomb_blocks
from mlff_triton.kernels.types.charges import (
    DAMPING,
    AtomOrder,
    CoulombSums,
    EwaldField,
    ReactionField,
)
from mlff_triton.kernels.types.edges import Edges

_DAMPING = tl.constexpr(DAMPING)
_LARGEST = tl.constexpr(1 - 1 / 128)  # squared relative distance at which the damping ends
_TWO_OVER_ROOT_PI = tl.constexpr(1.1283791670955126)
_BLOCK = 32  # atoms per program, and in an iteration


@triton.jit
def _damping(distance):
    """Return the damping of pairs at these distances, and its derivative."""
    squared = distance / _DAMPING * (distance / _DAMPING)
    near = squared < _LARGEST
    squared = tl.where(near, squared, 0.0).to(distance.dtype)
    rest = 1 - squared
    x = squared / rest
    decay = tl.where(near, tl.exp2(-LOG2_E * x), 0.0).to(distance.dtype)
    value = 1 - decay
    if distance.dtype == tl.float32:  # no cancellation at short distances
        series = 1 - x * (1 / 5) * (1 - x * (1 / 6))
        series = 1 - x * (1 / 2) * (1 - x * (1 / 3) * (1 - x * (1 / 4) * series))
        value = tl.where(near & (x < 0.25), x * series, value)
    return value, decay * 2 * distance / (_DAMPING * _DAMPING * rest * rest)


@triton.jit
def _field(distance, first, second, EWALD: tl.constexpr):
    """Return the energy of unit charges at these distances, and its derivative.

    The constants are the splitting of an Ewald sum, or those of a reaction field.
    """
    damping, slope = _damping(distance)
    inverse = 1 / distance
    if EWALD:
        value, decay = erfc(first * distance)
        energy = (value - (1 - damping)) * inverse
        slope -= _TWO_OVER_ROOT_PI * first * decay
        slope = slope * inverse - energy * inverse
    else:
        bare = inverse + first * distance * distance - second
        energy = damping * bare
        slope = slope * bare + damping * (2 * first * distance - inverse * inverse)
    return energy, slope


@triton.jit
def _coulomb_pairs_kernel(
    positions_ptr,
    charges_ptr,
    weights_ptr,
    mean_weights_ptr,
    rank_ptr,
    system_ptr,
    grad_charges_ptr,
    mean_ptr,
    forces_ptr,
    atoms_ptr,
    n_atoms,
    n_charges,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum over all pairs of some atoms. Grid: one program per system and BLOCK of its atoms.

    Reads ``positions[N, 3]``, ``charges[N, n_charges]``, the weights [n_charges] of energy and
    mean, ``rank[N]`` and ``system[B + 1]``. Writes ``grad_charges[N, n_charges]``, ``mean[N]``,
    ``forces[N, 3]`` and ``atoms[7, N]``. Virials refer to the first atom of each system.
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
    out = grad_charges_ptr + row[:, None] * n_charges + column
    tl.store(out, (2 * potential).to(dtype), mask)
    means = tl.load(mean_weights_ptr + column, column < n_charges, other=0.0)
    tl.store(mean_ptr + atom, tl.sum(charges * means, axis=1), inside)
    out = forces_ptr + atom.to(tl.int64) * 3
    tl.store(out, -2 * gx, inside)
    tl.store(out + 1, -2 * gy, inside)
    tl.store(out + 2, -2 * gz, inside)
    place, origin = positions_ptr + atom.to(tl.int64) * 3, positions_ptr + begin.to(tl.int64) * 3
    px = tl.load(place, inside, other=0.0) - tl.load(origin)
    py = tl.load(place + 1, inside, other=0.0) - tl.load(origin + 1)
    pz = tl.load(place + 2, inside, other=0.0) - tl.load(origin + 2)
    stride = tl.cast(n_atoms, tl.int64)
    tl.store(atoms_ptr + atom, tl.sum(potential * charges, axis=1), inside)
    tl.store(atoms_ptr + stride + atom, 2 * px * gx, inside)
    tl.store(atoms_ptr + 2 * stride + atom, 2 * py * gy, inside)
    tl.store(atoms_ptr + 3 * stride + atom, 2 * pz * gz, inside)
    tl.store(atoms_ptr + 4 * stride + atom, py * gz + pz * gy, inside)
    tl.store(atoms_ptr + 5 * stride + atom, px * gz + pz * gx, inside)
    tl.store(atoms_ptr + 6 * stride + atom, px * gy + py * gx, inside)


@triton.jit
def _coulomb_edges_kernel(
    charges_ptr,
    weights_ptr,
    mean_weights_ptr,
    field_ptr,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    direction_ptr,
    distance_ptr,
    order_ptr,
    grad_charges_ptr,
    mean_ptr,
    forces_ptr,
    atoms_ptr,
    n_atoms,
    n_charges,
    n_slots,
    C: tl.constexpr,
    LANES: tl.constexpr,
    EWALD: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum over the edges of an atom. Grid: one program per atom.

    Reads ``charges[N, n_charges]``, the weights [n_charges] of energy and mean, ``field[3]``, or
    ``field[2]`` of an Ewald sum, from `Edges` ``slot_begin[N]``, ``slot_end[N]``,
    ``senders[slots]``, ``direction[3, slots]`` and ``distance[slots]``, and ``order[N]``. Writes
    ``grad_charges[N, n_charges]``, ``mean[N]``, ``forces[N, 3]`` and ``atoms[7, N]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(slot_begin_ptr + atom), tl.load(slot_end_ptr + atom)
    dtype: tl.constexpr = charges_ptr.dtype.element_ty
    column = tl.arange(0, C)
    used = column < n_charges
    charges = tl.load(charges_ptr + atom * n_charges + column, used, other=0.0)
    weights = tl.load(weights_ptr + column, used, other=0.0)
    cutoff, first = tl.load(field_ptr).to(dtype), tl.load(field_ptr + 1).to(dtype)
    second = first
    if not EWALD:
        second = tl.load(field_ptr + 2).to(dtype)
    stride = tl.cast(n_slots, tl.int64)

    sums = tl.zeros([LANES, C], dtype)
    zero = tl.zeros([LANES], tl.float64)
    gx, gy, gz = zero, zero, zero
    xx, yy, zz, yz, xz, xy = zero, zero, zero, zero, zero, zero
    lane = tl.arange(0, LANES)
    following = tl.load(senders_ptr + begin + lane, begin + lane < end, other=0)
    for start in range(begin, end, LANES):
        slot = start + lane
        live = slot < end
        sender = following.to(tl.int64)
        pointers = charges_ptr + sender[:, None] * n_charges + column[None, :]
        other = tl.load(pointers, live[:, None] & used[None, :], other=0.0)  # [LANES, C]
        following = tl.load(senders_ptr + slot + LANES, slot + LANES < end, other=0)
        distance = tl.load(distance_ptr + slot, live, other=1.0)
        ux = tl.load(direction_ptr + slot, live, other=0.0)
        uy = tl.load(direction_ptr + stride + slot, live, other=0.0)
        uz = tl.load(direction_ptr + 2 * stride + slot, live, other=0.0)
        inside = live & (distance < cutoff)
        factor, slope = _field(distance, first, second, EWALD)
        factor = tl.where(inside, factor, 0.0).to(dtype)
        # The same bits for the opposite edge
        product = tl.sum(other * charges[None, :] * weights[None, :], axis=1)
        slope = tl.where(inside, slope * product, 0.0).to(dtype)
        sums += factor[:, None] * other
        ex = (slope * ux).to(tl.float64)
        ey = (slope * uy).to(tl.float64)
        ez = (slope * uz).to(tl.float64)
        gx, gy, gz = gx + ex, gy + ey, gz + ez
        length = distance.to(tl.float64)
        x, y, z = ux * length, uy * length, uz * length
        xx, yy, zz = xx + x * ex, yy + y * ey, zz + z * ez
        yz, xz, xy = yz + y * ez, xz + x * ez, xy + x * ey

    potential = tl.sum(sums.to(tl.float64), axis=0)
    potential *= weights
    out = grad_charges_ptr + atom * n_charges + column
    tl.store(out, (2 * potential).to(dtype), used)
    user_atom = tl.load(order_ptr + atom).to(tl.int64)
    means = tl.load(mean_weights_ptr + column, used, other=0.0)
    tl.store(mean_ptr + user_atom, tl.sum(charges * means))
    tl.store(forces_ptr + 3 * user_atom, -2 * tl.sum(gx))
    tl.store(forces_ptr + 3 * user_atom + 1, -2 * tl.sum(gy))
    tl.store(forces_ptr + 3 * user_atom + 2, -2 * tl.sum(gz))
    stride, atoms_ptr = tl.cast(n_atoms, tl.int64), atoms_ptr + user_atom
    tl.store(atoms_ptr, tl.sum(potential * charges))
    tl.store(atoms_ptr + stride, tl.sum(xx))
    tl.store(atoms_ptr + 2 * stride, tl.sum(yy))
    tl.store(atoms_ptr + 3 * stride, tl.sum(zz))
    tl.store(atoms_ptr + 4 * stride, tl.sum(yz))
    tl.store(atoms_ptr + 5 * stride, tl.sum(xz))
    tl.store(atoms_ptr + 6 * stride, tl.sum(xy))


def _sums(charges: Tensor) -> CoulombSums:
    """Allocate results."""
    n_atoms = len(charges)
    forces = charges.new_empty(n_atoms, 3, dtype=torch.float64)
    atoms = charges.new_empty(7, n_atoms, dtype=torch.float64)
    return CoulombSums(torch.empty_like(charges), torch.empty_like(charges[:, 0]), forces, atoms)


def _sums_of_first(charges: Tensor, n_first: int, n_atoms: int) -> CoulombSums:
    """Allocate results for the first rows of charges, with zeros for all other atoms."""
    forces = charges.new_zeros(n_atoms, 3, dtype=torch.float64)
    atoms = charges.new_zeros(7, n_atoms, dtype=torch.float64)
    return CoulombSums(
        torch.empty_like(charges[:n_first]), charges.new_zeros(n_atoms), forces, atoms
    )


def coulomb_pairs(
    positions: Tensor, charges: Tensor, weights: Tensor, mean_weights: Tensor, order: AtomOrder
) -> CoulombSums:
    """Compute the Coulomb energies of molecules, over all their pairs, and the gradients.

    Parameters
    ----------
    positions : float64 [N, 3]
        In the user's order, Å.
    charges : [N, C]
        Partial charges of all layers, one row per atom.
    weights : [C]
        Weights of the charges' products, with half the Coulomb constant, eV Å.
    mean_weights : [C]
        Weights of the charges in their mean.
    order : AtomOrder
        Rows of the user's atoms, and their systems.

    Returns
    -------
    CoulombSums
        Virials refer to the first atom of each system.
    """
    check_device(positions, charges)
    n_atoms, n_charges = charges.shape
    sums = _sums(charges)
    n_systems = len(order.system_ptr) - 1
    with torch.cuda.device_of(positions):
        _coulomb_pairs_kernel[(n_systems, max(triton.cdiv(order.largest, _BLOCK), 1))](
            positions,
            charges,
            weights,
            mean_weights,
            order.rank,
            order.system_ptr,
            *sums,
            n_atoms,
            n_charges,
            C=max(triton.next_power_of_2(n_charges), 16),
            BLOCK=_BLOCK,
            PRECISION=exact_precision(charges),
            **early_launch(positions),
        )
    return sums


def coulomb_edges(
    charges: Tensor,
    weights: Tensor,
    mean_weights: Tensor,
    edges: Edges,
    field: ReactionField | EwaldField,
    order: Tensor,
) -> CoulombSums:
    """Compute the Coulomb energies of edges, and the gradients.

    Forces on the two ends of an edge are opposite to the bit.

    Parameters
    ----------
    charges : [M, C]
        Partial charges of all layers.
    weights : [C]
        Weights of the charges' products, with half the Coulomb constant, eV Å.
    mean_weights : [C]
        Weights of the charges in their mean.
    edges : Edges
        Edges that include all pairs within the cutoff of the field, of N atoms.
    field : ReactionField or EwaldField
        Cutoff and coefficients, of a reaction field or of the pairs of an Ewald sum.
    order : int32 [N or more]
        The user's index of each atom. Results in the user's order are zero for atoms without edges
        here, if there are any.

    Returns
    -------
    CoulombSums
    """
    check_device(charges)
    n_first, n_charges, n_atoms = len(edges.slot_begin), charges.shape[1], len(order)
    is_whole = n_first == n_atoms == len(charges)
    sums = _sums(charges) if is_whole else _sums_of_first(charges, n_first, n_atoms)
    blocks = coulomb_blocks(charges)
    with torch.cuda.device_of(charges):
        _coulomb_edges_kernel[(n_first,)](
            charges,
            weights,
            mean_weights,
            field.constants,
            edges.slot_begin,
            edges.slot_end,
            edges.senders,
            edges.direction,
            edges.distance,
            order,
            *sums,
            n_atoms,
            n_charges,
            len(edges.senders),
            C=triton.next_power_of_2(n_charges),
            LANES=blocks.lanes,
            EWALD=isinstance(field, EwaldField),
            num_warps=blocks.warps,
            **register_limit(blocks.registers),
            **early_launch(charges),
        )
    return sums
