"""Screened repulsion of nuclei, and its gradients along the edges.

    E_ij = k z_i z_j / d  phi(d / l)  (1 + cos(pi d / c)) / 2      phi(x) = sum_m w_m exp(-r_m x)

within the cutoff c, with the screening length ``1 / l = (z_i^0.23 + z_j^0.23) / (0.8854 a_0)``. The
repulsion of a TensorNet2 has another length and, with ``t = d / c_ij`` for an end c_ij of each pair
of elements, the switch ``1 - 28 t^6 + 48 t^7 - 21 t^8``.

J. F. Ziegler, J. P. Biersack, U. Littmark, "The Stopping and Range of Ions in Solids" (1985), eqs.
9 and 10, p. 147. Computed in float64, from distances in the dtype of the network.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.nuclei import SCREENING, Nuclei

(_W0, _R0), (_W1, _R1), (_W2, _R2), (_W3, _R3) = (
    (tl.constexpr(weight), tl.constexpr(rate)) for weight, rate in SCREENING
)
_PI = tl.constexpr(math.pi)


@triton.jit
def _repulsion_kernel(
    edge_grad_ptr,
    species_ptr,
    nuclear_charge_ptr,
    inverse_length_ptr,
    half_coulomb_ptr,
    cutoff_ptr,
    ends_ptr,
    n_elements,
    slot_begin_ptr,
    slot_end_ptr,
    senders_ptr,
    origin_ptr,
    direction_ptr,
    distance_ptr,
    energies_ptr,
    n_slots,
    BLOCK: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Sum the repulsion energy of an atom, and update its edges. Grid: one program per atom.

    Reads ``species[N]``; the fields of `Nuclei`; and ``slot_begin[N]``, ``slot_end[N]``,
    ``senders[slots]``, ``origin[slots]``, ``direction[3, slots]`` and ``distance[slots]`` of
    `Edges`. Writes ``energies[N]``, and adds the gradients to ``edge_grad[3, slots]``.
    """
    wait_for_previous(EARLY_LAUNCH)
    atom = tl.program_id(0)
    begin, end = tl.load(slot_begin_ptr + atom), tl.load(slot_end_ptr + atom)
    own_element = tl.load(species_ptr + atom)
    own_charge = tl.load(half_coulomb_ptr) * tl.load(nuclear_charge_ptr + own_element)
    own_inverse_length = tl.load(inverse_length_ptr + own_element)
    cutoff = tl.load(cutoff_ptr)
    wave_number = _PI / cutoff
    stride = tl.cast(n_slots, tl.int64)
    lane = tl.arange(0, BLOCK)
    energies = tl.zeros([BLOCK], tl.float64)
    for start in range(begin, end, BLOCK):
        slot = start + lane
        live = slot < end
        d = tl.load(distance_ptr + slot, live, other=1.0).to(tl.float64)
        near = live & (d < cutoff)
        sender = tl.load(senders_ptr + slot, near, other=0)
        element = tl.load(species_ptr + sender, near, other=0)
        inverse_length = own_inverse_length + tl.load(inverse_length_ptr + element)
        coulomb = own_charge * tl.load(nuclear_charge_ptr + element) / d

        x = d * inverse_length
        e0, e1 = _W0 * tl.exp(-_R0 * x), _W1 * tl.exp(-_R1 * x)
        e2, e3 = _W2 * tl.exp(-_R2 * x), _W3 * tl.exp(-_R3 * x)
        screening = e0 + e1 + e2 + e3
        screening_slope = -inverse_length * (_R0 * e0 + _R1 * e1 + _R2 * e2 + _R3 * e3)

        if ends_ptr is None:
            switch = 0.5 * (1.0 + tl.cos(wave_number * d))
            switch_slope = -0.5 * wave_number * tl.sin(wave_number * d)
        else:
            pair = own_element * n_elements + element
            pair_end = tl.load(ends_ptr + pair, near, other=1.0)
            t = tl.minimum(d / pair_end, 1.0)
            t5 = t * t * (t * t) * t
            switch = 1.0 - t5 * t * (28.0 - t * (48.0 - 21.0 * t))
            switch_slope = -168.0 * t5 * (1.0 - t) * (1.0 - t) / pair_end

        energy = coulomb * screening * switch
        slope = coulomb * (screening_slope * switch + screening * switch_slope) - energy / d
        energies += tl.where(near, energy, 0.0)

        own_grad_ptr = edge_grad_ptr + tl.load(origin_ptr + slot, near, other=0)
        _add_along(own_grad_ptr, direction_ptr + slot, slope, near)
        _add_along(own_grad_ptr + stride, direction_ptr + stride + slot, slope, near)
        _add_along(own_grad_ptr + 2 * stride, direction_ptr + 2 * stride + slot, slope, near)

    tl.store(energies_ptr + atom, tl.sum(energies))


@triton.jit
def _add_along(grad_ptr, direction_ptr, slope, mask):
    """Add ``slope * direction`` of edges [BLOCK] to their gradients in memory."""
    direction = tl.load(direction_ptr, mask, other=0.0)
    grad = tl.load(grad_ptr, mask, other=0.0)
    tl.store(grad_ptr, grad + (slope * direction).to(grad.dtype), mask)


def repulsion(edge_grad: Tensor, species: Tensor, nuclei: Nuclei, edges: Edges) -> Tensor:
    """Compute repulsion energies, and add their gradients to those of the edges in place.

    Parameters
    ----------
    edge_grad : [3, slots]
        ``dE/dr_e``, indexed by ``edges.origin``; receives the contributions of the repulsion.
    species : int32 [M]
        Element of each atom.
    nuclei : Nuclei
        Charges and screening lengths of the elements.
    edges : Edges
        Edges of N receivers that include all pairs within the cutoff of the repulsion.

    Returns
    -------
    float64 [N]
        Half the repulsion energy between each receiver and its neighbors, eV.
    """
    check_device(edge_grad)
    n_atoms = len(edges.slot_begin)
    energies = species.new_empty(n_atoms, dtype=torch.float64)
    with torch.cuda.device_of(edge_grad):
        _repulsion_kernel[(n_atoms,)](
            edge_grad,
            species,
            nuclei.charge,
            nuclei.inverse_length,
            nuclei.half_coulomb,
            nuclei.cutoff,
            nuclei.ends,
            len(nuclei.charge),
            edges.slot_begin,
            edges.slot_end,
            edges.senders,
            edges.origin,
            edges.direction,
            edges.distance,
            energies,
            len(edges.senders),
            BLOCK=64,
            num_warps=1,
            **early_launch(edge_grad),
        )
    return energies
