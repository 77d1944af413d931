"""Weights of the maps of pairs, which kernels and references share."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PairMLP(NamedTuple):
    """MLP of normalized pairs.

    Attributes
    ----------
    up, up_bias : [C, K], [K]
        Map to the hidden layer, including the weight and bias of the normalization.
    down, down_bias : [K, C], [C]
        Map of the hidden layer.
    """

    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


class PairBiases(NamedTuple):
    """Maps of pairs to biases of the attention of L layers.

    Attributes
    ----------
    scale, shift : float32 [L, C]
        Normalization.
    weight : [L, C, H]
        Map of the activated pairs to heads.
    """

    scale: Tensor
    shift: Tensor
    weight: Tensor


class PairContacts(NamedTuple):
    """Map of pairs to contacts, for O organisms.

    Attributes
    ----------
    scale : float32 [C]
        Weight of the normalization.
    shift : float32 [O, C]
        Bias of the normalization plus the embedding of an organism.
    weight, bias : [O, C, T], float32 [O, T]
        Map of the activated pairs to T tracks.
    """

    scale: Tensor
    shift: Tensor
    weight: Tensor
    bias: Tensor
