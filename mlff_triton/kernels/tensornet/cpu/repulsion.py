"""Screened repulsion of nuclei: see `mlff_triton.kernels.tensornet.reference.repulsion`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import inlined, loop, run
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.kernels.types.nuclei import SCREENING, Nuclei


def repulsion(edge_grad: Tensor, species: Tensor, nuclei: Nuclei, edges: Edges) -> Tensor:
    """Compute the energies [M] of receivers in float64; add gradients to ``edge_grad``."""
    energies = torch.empty(len(edges.slot_begin), dtype=torch.float64)
    slots = edges.slot_begin, edges.slot_end, edges.senders, edges.origin
    ends = nuclei.charge.new_empty(0, 0) if nuclei.ends is None else nuclei.ends
    atoms = nuclei.charge, nuclei.inverse_length, nuclei.half_coulomb, nuclei.cutoff, ends
    arrays = species, *atoms, *slots, edges.direction, edges.distance
    run(_repulsion, len(energies), *arrays, edge_grad, energies)
    return energies


@loop
def _repulsion(
    species, charge, inverse_length, half_coulomb, cutoff, ends,
    slot_begin, slot_end, senders, origin, direction, distance, edge_grad, energies, first, last,
):  # fmt: skip
    for i in range(first, last):
        total, z = 0.0, species[i]
        for e in range(slot_begin[i], slot_end[i]):
            d = float(distance[e])
            if distance[e] < cutoff[0]:
                other = species[senders[e]]
                screening, screening_slope = _screening(
                    d, inverse_length[z] + inverse_length[other]
                )
                if len(ends) == 0:
                    switch, switch_slope = _cosine(d, cutoff[0])
                else:
                    switch, switch_slope = _polynomial(d, ends[z, other])
                coulomb = half_coulomb[0] * charge[z] * charge[other] / d
                energy = coulomb * screening * switch
                slope = screening_slope * switch + screening * switch_slope
                slope = coulomb * slope - energy / d
                total += energy
                k = origin[e]
                for c in range(3):
                    edge_grad[c, k] += slope * direction[c, e]
        energies[i] = total


@inlined
def _screening(d, inverse_length):
    """Return the screening function and its derivative by the distance."""
    value = slope = 0.0
    for weight, rate in SCREENING:
        term = weight * math.exp(-rate * d * inverse_length)
        value += term
        slope -= rate * inverse_length * term
    return value, slope


@inlined
def _cosine(d, cutoff):
    """Return the switch of a repulsion within a cutoff, and its derivative."""
    wave_number = math.pi / cutoff
    phase = wave_number * d
    return (1 + math.cos(phase)) / 2, -wave_number * math.sin(phase) / 2


@inlined
def _polynomial(d, end):
    """Return the switch of a repulsion between elements, and its derivative."""
    t = min(d / end, 1.0)
    t5 = t * t * t * t * t
    return 1 - t5 * t * (28 - t * (48 - 21 * t)), -168 * t5 * (1 - t) * (1 - t) / end
