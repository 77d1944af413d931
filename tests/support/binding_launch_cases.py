"""Calls of all operators on protein-ligand complexes, for `launch_cases`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mlff_triton.kernels.binding.complex_tokens import complex_tokens
from mlff_triton.kernels.binding.contact_energy import contact_energy
from mlff_triton.kernels.binding.frame_attention import frame_attention
from mlff_triton.kernels.binding.frame_network import frame_network
from mlff_triton.kernels.binding.principal_axes import principal_axes
from mlff_triton.kernels.binding.symmetric_eigen import symmetric_eigen
from tests.kernels.binding import cases

CHANNELS, HEADS, CUTOFF = 256, 4, 10.0


def binding_calls() -> dict[str, Callable[[], object]]:
    """Operators on two complexes of 52 atoms."""
    given = cases.Complexes(2, 2, 50, CHANNELS)
    layout, tokens = given.layout, cases.split_tokens(given.tokens, "cpu")
    directions, positions, groups, kinds = (
        cases.to_device(x, "cpu")
        for x in (given.directions, given.positions, given.groups, given.kind_rows)
    )
    network = cases.to_device(cases.network(CHANNELS, CHANNELS), "cpu")
    readout = cases.to_device(cases.readout(CHANNELS), "cpu")
    centers, axes = torch.ones(2, 3).double(), torch.ones(2, 3, 3).double()
    embedded, attended = cases.split(given.tokens.embedded), cases.split(given.attended)
    length = given.kept.shape[1]
    return {
        "symmetric_eigen": lambda: symmetric_eigen(torch.ones(9, 3, 3)),
        "principal_axes": lambda: principal_axes(given.positions.float(), given.kept),
        "complex_tokens": lambda: complex_tokens(
            positions, given.kinds, layout, centers, axes, groups, kinds
        ),
        "frame_attention": lambda: frame_attention(
            tokens, layout.row_ptr, length, directions, HEADS
        ),
        "frame_network": lambda: frame_network(
            tokens, attended, layout.row_ptr[-1:], directions, network
        ),
        "contact_energy": lambda: contact_energy(
            embedded, tokens.positions, layout, given.max_lengths, CUTOFF, readout
        ),
    }
