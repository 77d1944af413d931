"""Screened repulsion of nuclei, and its gradients along the edges, in plain PyTorch.

    E_ij = k z_i z_j / d  phi(d / l)  (1 + cos(pi d / c)) / 2      phi(x) = sum_m w_m exp(-r_m x)

within the cutoff c, with the screening length ``1 / l = (z_i^0.23 + z_j^0.23) / (0.8854 a_0)``. The
repulsion of a TensorNet2 has another length and, with ``t = d / c_ij`` for an end c_ij of each pair
of elements, the switch ``1 - 28 t^6 + 48 t^7 - 21 t^8``.

J. F. Ziegler, J. P. Biersack, U. Littmark, "The Stopping and Range of Ions in Solids" (1985), eqs.
9 and 10, p. 147. Arguments and results are those of `mlff_triton.kernels.tensornet.repulsion`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import sum_at_receivers
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.nuclei import SCREENING, Nuclei


def repulsion(edge_grad: Tensor, species: Tensor, nuclei: Nuclei, edges: Edges) -> Tensor:
    """Compute the energies [M] of receivers in float64; add gradients to ``edge_grad``."""
    slots, receivers = edges.live()
    near = edges.distance[slots] < nuclei.cutoff
    slots, receivers = slots[near], receivers[near]
    pairs = species[receivers], species[edges.senders[slots]]
    energy, slope = _half_pairs(nuclei, *pairs, edges.distance[slots].double())
    gradient = slope * edges.direction[:, slots]
    edge_grad[:, edges.origin[slots].long()] += gradient.to(edge_grad.dtype)
    return sum_at_receivers(energy, receivers, len(edges.slot_begin))


def _half_pairs(nuclei: Nuclei, i: Tensor, j: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return half the repulsion of pairs [E] of elements, and its derivative by the distance."""
    inverse_length = nuclei.inverse_length[i] + nuclei.inverse_length[j]
    x = distance * inverse_length
    terms = [(rate, weight * torch.exp(-rate * x)) for weight, rate in SCREENING]
    screening = torch.stack([term for _, term in terms]).sum(0)
    screening_slope = -inverse_length * torch.stack([r * term for r, term in terms]).sum(0)

    if nuclei.ends is None:
        wave_number = math.pi / nuclei.cutoff
        switch = (1 + torch.cos(wave_number * distance)) / 2
        switch_slope = -wave_number * torch.sin(wave_number * distance) / 2
    else:
        end = nuclei.ends[i, j]
        t = (distance / end).clamp(max=1.0)
        switch = 1 - t**6 * (28 - t * (48 - 21 * t))
        switch_slope = -168 * t**5 * (1 - t) ** 2 / end

    coulomb = nuclei.half_coulomb * nuclei.charge[i] * nuclei.charge[j] / distance
    energy = coulomb * screening * switch
    slope = coulomb * (screening_slope * switch + screening * switch_slope) - energy / distance
    return energy, slope
