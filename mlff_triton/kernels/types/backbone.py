"""Weights of the features of a protein's backbone."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.types.linear import Linear
from mlff_triton.kernels.types.norm import Norm

ATOMS = ("N", "CA", "C", "O", "CB")
"""Atoms of a residue; CB is virtual."""

N_PAIRS = 28
"""Number of pairs of atoms that kernels count: 25 and three without weight."""

N_RBF = 16
NEAREST, FARTHEST = 2.0, 22.0
"""Number of radial basis functions, and centers of the first and the last one in Å."""

FARTHEST_OFFSET = 32
"""Offset of residues in the sequence from which on all are alike."""


MAX_LENGTH = 8192
"""Longest protein whose distances from one residue fit into the registers of a program."""


class BackboneWeights(NamedTuple):
    """Weights of the embedding of edges.

    Attributes
    ----------
    offsets : [66, C]
        Contribution of each offset in the sequence, -32 to 32, and of edges between chains.
    distances : [28, 16, C]
        Weights of the basis functions of each pair of `ATOMS`, the receiver's atom first; zero for
        the last three.
    norm : Norm
        Normalization of the sum.
    out : Linear
        Last map, [C, C].
    """

    offsets: Tensor
    distances: Tensor
    norm: Norm
    out: Linear
