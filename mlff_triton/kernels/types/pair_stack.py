"""Weights of the layers on representations of pairs, which kernels and references share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.types.norm import Norm


class TriangleWeights(NamedTuple):
    """Weights of triangle multiplication, which have one dtype.

    Attributes
    ----------
    norm_in, norm_out : Norm
        Normalizations of the pairs, and of the sums over triangles.
    project_in, gate_in : [2 C, C]
        Maps of normalized pairs to the two factors of C channels, the first one above the second,
        and to their gates.
    project_out, gate_out : [C, C]
        Map of normalized sums to the update, and of normalized pairs to its gates.
    """

    norm_in: Norm
    norm_out: Norm
    project_in: Tensor
    gate_in: Tensor
    project_out: Tensor
    gate_out: Tensor


class TransitionWeights(NamedTuple):
    """Weights of a SwiGLU transition with K hidden channels, which have one dtype.

    Attributes
    ----------
    norm : Norm
        Normalization of the rows.
    gate, up : [K, C]
        Maps of normalized rows to the hidden channels: those that are activated, and their factors.
    down : [C, K]
        Map of the products to the update.
    """

    norm: Norm
    gate: Tensor
    up: Tensor
    down: Tensor
