"""Tokens and weights of frame-averaging networks over protein-ligand complexes.

A frame is a choice of signs of the principal axes of a complex. Coordinates along these axes enter
the network through one linear map, and are all that differs between the eight frames. So each of
the maps up to queries, keys and values has two parts: one that all frames share, which is stored
per token, and one that acts on the three coordinates, a matrix of three rows called ``directions``.

Kernels take weights, keys and values as halves: see `mlff_triton.kernels.numerics.split`.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.types.linear import Linear
from mlff_triton.kernels.types.norm import Norm

FRAMES = 8
"""Frames of a complex; bit k of a frame's number is set if axis k is reversed."""

PARTS = 4
"""Parts of a token: embedded atom, query, key and value, in this order."""


class Layout(NamedTuple):
    """Rows of the tokens of B complexes, those of the ligand first in each complex.

    Attributes
    ----------
    token : int32 [T]
        Index b L + l of each row's atom among padded atoms [B, L]. Rows from ``row_ptr[-1]`` on
        are not in use.
    row_ptr : int32 [B + 1]
        Complex ``b`` holds the rows ``row_ptr[b]:row_ptr[b + 1]``.
    n_ligand : int32 [B]
        Number of rows of each ligand.
    """

    token: Tensor
    row_ptr: Tensor
    n_ligand: Tensor


class Tokens(NamedTuple):
    """Parts of tokens that all frames share.

    Attributes
    ----------
    positions : float32 [T, 3]
        Positions in Å.
    coordinates : [3, T]
        Coordinates in Å along the principal axes, from the center.
    embedded : [T, C]
        Embedded atoms.
    queries : [T, C]
        Queries, scaled so that scores are in units of ln 2.
    keys, values : [T, C], or float16 [2, T, C]
        Keys and values; halves for kernels.
    """

    positions: Tensor
    coordinates: Tensor
    embedded: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor


class FrameNetwork(NamedTuple):
    """The part of a Transformer layer after attention, for each token and frame.

    Attributes
    ----------
    out : Linear
        Map of the attention's output, [C, C].
    norm : Norm
        Normalization after attention.
    up, down : Linear
        Two maps, [C, H] and [H, C], with ReLU between them.
    last_norm : Norm
        Normalization after the two maps.
    """

    out: Linear
    norm: Norm
    up: Linear
    down: Linear
    last_norm: Norm


class Readout(NamedTuple):
    """Maps to the vectors whose products are energies of contacts.

    Attributes
    ----------
    up, down : Linear
        Two maps of ligand atoms, [C, C], with SiLU between them.
    target : Linear
        Map of the protein's atoms, [C, C], with SiLU after it.
    """

    up: Linear
    down: Linear
    target: Linear
