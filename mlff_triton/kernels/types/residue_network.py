"""Weights of the layers of graph networks over residues.

The first linear map of a network of edges acts on the receiving residue, the edge and the sending
residue. It is split: the parts of the residues are computed once per residue, and only that of the
edge once per edge. All weights are transposed, [inputs, outputs].
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.types.linear import Linear
from mlff_triton.kernels.types.norm import Norm


class EdgeNetwork(NamedTuple):
    """Three linear maps with GELU between them.

    Attributes
    ----------
    first : [C, C]
        Part of the first map that acts on edges, transposed. Its bias is in the receivers' part.
    second, third : Linear
        The other maps, [C, C].
    """

    first: Tensor
    second: Linear
    third: Linear


class Projections(NamedTuple):
    """Parts of the first maps of one or several networks of edges that act on residues.

    Attributes
    ----------
    weight : [P, C, C]
        Transposed weights.
    bias : [P, 1, C]
        Biases; zero for senders.
    """

    weight: Tensor
    bias: Tensor


class ResidueNetwork(NamedTuple):
    """The part of a layer that acts on each residue.

    Attributes
    ----------
    norm : Norm
        Normalization after the messages.
    up, down : Linear
        Two maps, [C, H] and [H, C], with GELU between them.
    last_norm : Norm
        Normalization after them.
    """

    norm: Norm
    up: Linear
    down: Linear
    last_norm: Norm
