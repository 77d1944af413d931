"""Weights of DualBind, with consecutive linear maps multiplied together.

An atom is embedded by a linear map of its coordinates in a frame, its residue or its neighborhood
in the ligand, and its kind. Queries, keys and values are linear maps of the embedded atom. So each
of the four is a sum of three parts, whose maps are products of the model's, computed here in
float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.weights import converted, exact, exact_linear, exact_norm
from mlff_triton.kernels.binding.types import PARTS, FrameNetwork, Readout
from mlff_triton.kernels.numerics.split import split_weight
from mlff_triton.kernels.types.linear import Linear


class MoleculeWeights(NamedTuple):
    """Weights of the message-passing network over a ligand's bonds.

    Attributes
    ----------
    bonds : [F, C]
        Map of bond features, transposed like the other ones.
    hidden : [C, C]
        Map of messages.
    atoms : [G, C]
        Part of the last map that acts on atom features.
    messages : Linear
        Part that acts on messages, [C, C].
    depth : int
        Number of steps, counting the first map and not the last one.
    """

    bonds: Tensor
    hidden: Tensor
    atoms: Tensor
    messages: Linear
    depth: int


class Embedding(NamedTuple):
    """Maps to the embedded atom, the query, the key and the value of a token.

    Attributes
    ----------
    ligand : Linear
        Part of ligand atoms after message passing, [C, 4 C].
    residues : Linear
        Part of residue types, [R, 4 C].
    kinds : [2 V + 1, 4, C]
        Part of the kinds of ligand atoms, then of the protein's atoms; NaN in the last row, for
        kinds that are unknown.
    directions : [4, 3, C]
        Part of coordinates.
    """

    ligand: Linear
    residues: Linear
    kinds: Tensor
    directions: Tensor

    @property
    def n_kinds(self) -> int:
        """Number of kinds V."""
        return len(self.kinds) // 2


class DualBindWeights(NamedTuple):
    """All weights of DualBind.

    Attributes
    ----------
    molecule : MoleculeWeights
        Message passing in the ligand.
    embedding : Embedding
        Maps to tokens.
    network : FrameNetwork
        The Transformer layer after attention.
    readout : Readout
        Maps to vectors whose products are energies.
    n_heads : int
        Number of attention heads.
    """

    molecule: MoleculeWeights
    embedding: Embedding
    network: FrameNetwork
    readout: Readout
    n_heads: int

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> DualBindWeights:
        """Read the weights of a model, in a dtype."""
        layer = model.encoder.encoder
        weights = cls(
            _molecule(model.mpn),
            _embedding(model.encoder),
            FrameNetwork(
                exact_linear(layer.multihead_attention.dense),
                exact_norm(layer.norm1),
                exact_linear(layer.linear1),
                exact_linear(layer.linear2),
                exact_norm(layer.norm2),
            ),
            Readout(
                exact_linear(model.binder_output[0]),
                exact_linear(model.binder_output[2]),
                exact_linear(model.target_output[0]),
            ),
            layer.multihead_attention.num_heads,
        )
        return converted(weights, dtype)

    def split(self) -> DualBindWeights:
        """Split the weights of products over tokens into halves, as kernels read them."""
        network = self.network._replace(
            out=_split(self.network.out), up=_split(self.network.up), down=_split(self.network.down)
        )
        return self._replace(network=network, readout=Readout(*map(_split, self.readout)))


def _molecule(mpn: Any) -> MoleculeWeights:
    last = exact_linear(mpn.W_o)
    n_features = len(last.weight) - len(last.bias)
    return MoleculeWeights(
        exact(mpn.W_i.weight).T,
        exact(mpn.W_h.weight).T,
        last.weight[:n_features],
        Linear(last.weight[n_features:], last.bias),
        mpn.depth,
    )


def _embedding(encoder: Any) -> Embedding:
    """Multiply the maps to and from embedded atoms ``E [coordinates, group, kind] + e``."""
    attention = encoder.encoder.multihead_attention
    joint = exact_linear(encoder.linear)
    channels = len(joint.bias)
    coordinates, group, kind = joint.weight.split([3, channels, channels])
    scale = 1 / (math.log(2) * math.sqrt(channels // attention.num_heads))
    query, key, value = map(exact_linear, (attention.wq, attention.wk, attention.wv))
    identity = torch.eye(channels, dtype=torch.float64, device=group.device)
    parts = torch.cat([identity, scale * query.weight, key.weight, value.weight], 1)  # [C, 4 C]
    bias = torch.cat([torch.zeros_like(key.bias), scale * query.bias, key.bias, value.bias])
    kinds = torch.cat([exact(encoder.A_bind.weight), exact(encoder.A_tgt.weight)])
    kinds = (kinds @ kind + joint.bias) @ parts + bias
    unknown = torch.full_like(kinds[:1], torch.nan)
    shape = PARTS, channels

    def through(linear: nn.Linear) -> Linear:
        weight, own_bias = exact_linear(linear)
        return Linear(weight @ group @ parts, own_bias @ group @ parts)

    return Embedding(
        through(encoder.W_bind),
        through(encoder.W_tgt),
        torch.cat([kinds, unknown]).unflatten(1, shape),
        (coordinates @ parts).unflatten(1, shape).transpose(0, 1),
    )


def _split(linear: Linear) -> Linear:
    return linear._replace(weight=split_weight(linear.weight, "shifted_halves"))
