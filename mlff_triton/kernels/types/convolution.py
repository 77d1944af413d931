"""Inputs and results of convolutions, which also normalize and activate their results."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

ALIGNMENT = 8
"""Channels of operands are a multiple of this."""


class Activation(NamedTuple):
    """Batch normalization followed by GELU: ``u sigmoid(1.702 u)`` of ``u = scale x + shift``.

    Attributes
    ----------
    scale, shift : [N]
        Normalization of each channel; float32 for half precision.
    """

    scale: Tensor
    shift: Tensor


class Activated(NamedTuple):
    """Rows, and the same rows normalized and activated for the layer that reads them next.

    Attributes
    ----------
    rows : [B, S, N] or None
        Rows, if requested.
    activated : [B, S, N] or None
        Activated rows, if requested.
    """

    rows: Tensor | None
    activated: Tensor | None


class PairMaxima(NamedTuple):
    """Maxima of pairs of positions, and activated positions.

    Attributes
    ----------
    rows : [B, S / 2, C]
        Maxima.
    next : [B, S / 2, C] or None
        Maxima, normalized and activated.
    skip : [B, S, C] or None
        All positions, normalized and activated.
    """

    rows: Tensor
    next: Tensor | None
    skip: Tensor | None
