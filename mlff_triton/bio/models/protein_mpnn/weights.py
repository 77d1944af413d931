"""Weights of ProteinMPNN, laid out for the operators on residues."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.weights import converted, exact, exact_linear, exact_norm, with_parts
from mlff_triton.kernels.numerics.split import split_weight
from mlff_triton.kernels.residues.types import (
    ATOMS,
    N_PAIRS,
    N_RBF,
    BackboneWeights,
    EdgeNetwork,
    Projections,
    ResidueNetwork,
)
from mlff_triton.kernels.types.linear import Linear
from mlff_triton.kernels.types.norm import Norm

PAIRS = [
    *("CA-CA", "N-N", "C-C", "O-O", "CB-CB", "CA-N", "CA-C", "CA-O", "CA-CB", "N-C", "N-O", "N-CB"),
    *("CB-C", "CB-O", "O-C", "N-CA", "C-CA", "O-CA", "CB-CA", "C-N", "O-N", "CB-N", "C-CB", "O-CB"),
    "C-O",
]
"""Pairs of atoms in the order of the model's features, the receiver's atom first."""


class EncoderLayer(NamedTuple):
    """A layer of the encoder.

    Attributes
    ----------
    message, update : EdgeNetwork
        Networks of messages and of edges.
    residues : ResidueNetwork
        Network of residues.
    norm : Norm
        Normalization of edges.
    """

    message: EdgeNetwork
    update: EdgeNetwork
    residues: ResidueNetwork
    norm: Norm


class DecoderLayer(NamedTuple):
    """A layer of the decoder.

    Attributes
    ----------
    message : EdgeNetwork
        Network of messages.
    residues : ResidueNetwork
        Network of residues.
    projections : Projections
        Projections of residues as receivers and as senders.
    """

    message: EdgeNetwork
    residues: ResidueNetwork
    projections: Projections


class MPNNWeights(NamedTuple):
    """All weights of ProteinMPNN.

    Attributes
    ----------
    backbone : BackboneWeights
        Features of edges.
    encoder : list of EncoderLayer
        Layers of the encoder.
    projections : list of Projections
        Projections of residues before the first layer of the encoder and after each layer, for all
        networks of edges that follow: receiver and sender of the edges' update, then of the next
        layer's messages.
    decoder : list of DecoderLayer
        Layers of the decoder.
    encoded : Projections
        Projections of encoded residues as senders, in each layer of the decoder.
    sequences : [V, D, C]
        Parts of the first maps of the decoder's D layers for the amino acid of a sender.
    out : Linear
        Map to logits, [C, V].
    """

    backbone: BackboneWeights
    encoder: list[EncoderLayer]
    projections: list[Projections]
    decoder: list[DecoderLayer]
    encoded: Projections
    sequences: Tensor
    out: Linear

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> MPNNWeights:
        """Read the weights of a model, in a dtype."""
        return converted(_read(model), dtype)

    def split(self) -> MPNNWeights:
        """Split the weights of products into halves, as kernels read them in float32."""
        return MPNNWeights._make([*map(split_networks, self[:-1]), self.out])


def split_networks(value: Any) -> Any:
    """Split the weights of products in nested networks into halves; keep other tensors."""
    if isinstance(value, Linear | Projections):
        return value._replace(weight=split_weight(value.weight, "fixed_halves"))
    if isinstance(value, list):
        return [split_networks(part) for part in value]
    if isinstance(value, tuple):
        value = with_parts(value, map(split_networks, value))
    if isinstance(value, EdgeNetwork):
        return value._replace(first=split_weight(value.first, "fixed_halves"))
    if isinstance(value, BackboneWeights):
        return value._replace(distances=split_weight(value.distances.flatten(0, 1), "fixed_halves"))
    return value


def _read(model: Any) -> MPNNWeights:
    size = len(model.W_e.weight)
    layers = list(model.encoder_layers)
    decoder = list(model.decoder_layers)
    projections = [_projections(size, layers[0].W1)]
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        maps = [layer.W11] if following is None else [layer.W11, following.W1]
        projections.append(_projections(size, *maps))
    return MPNNWeights(
        backbone=_backbone(model),
        encoder=[
            EncoderLayer(
                _messages(size, layer),
                _network(size, layer.W11, layer.W12, layer.W13),
                _residues(layer),
                exact_norm(layer.norm3),
            )
            for layer in layers
        ],
        projections=projections,
        decoder=[
            DecoderLayer(
                _messages(size, layer),
                _residues(layer),
                _projections(size, layer.W1),
            )
            for layer in decoder
        ],
        encoded=Projections(
            torch.stack([_columns(layer.W1, size, 3) for layer in decoder]),
            torch.zeros(len(decoder), 1, size, dtype=torch.float64, device=model.W_e.weight.device),
        ),
        sequences=torch.stack(
            [exact(model.W_s.weight) @ _columns(layer.W1, size, 2) for layer in decoder], 1
        ),
        out=exact_linear(model.W_out),
    )


def _backbone(model: Any) -> BackboneWeights:
    features = model.features
    embedding, positions = features.edge_embedding.weight, features.embeddings.linear
    n_offsets = len(positions.weight)
    offsets = exact(positions.weight).T + exact(positions.bias)
    distances = exact(embedding)[:, n_offsets:].T.unflatten(0, (len(PAIRS), N_RBF))
    order = [PAIRS.index(f"{a}-{b}") for a in ATOMS for b in ATOMS]
    return BackboneWeights(
        offsets @ exact(embedding)[:, :n_offsets].T,
        torch.cat(
            [distances[order], distances.new_zeros(N_PAIRS - len(PAIRS), N_RBF, len(embedding))]
        ),
        exact_norm(features.norm_edges),
        exact_linear(model.W_e),
    )


def _columns(linear: nn.Linear, size: int, part: int) -> Tensor:
    """Return the transposed weight [C, C] for one of the concatenated inputs of a linear map."""
    return exact(linear.weight)[:, part * size : (part + 1) * size].T


def _network(size: int, first: nn.Linear, second: nn.Linear, third: nn.Linear) -> EdgeNetwork:
    return EdgeNetwork(_columns(first, size, 1), exact_linear(second), exact_linear(third))


def _messages(size: int, layer: Any) -> EdgeNetwork:
    """Read a layer's network of messages, divided by the constant that divides their sums."""
    network = _network(size, layer.W1, layer.W2, layer.W3)
    return network._replace(third=Linear(*(part / layer.scale for part in network.third)))


def _projections(size: int, *maps: nn.Linear) -> Projections:
    """Return the parts of maps for the receiver (their first input) and the sender (their last)."""
    weights, biases = [], []
    for linear in maps:
        last = linear.in_features // size - 1
        weights += [_columns(linear, size, 0), _columns(linear, size, last)]
        bias = exact(linear.bias)
        biases += [bias, torch.zeros_like(bias)]
    return Projections(torch.stack(weights), torch.stack(biases)[:, None])


def _residues(layer: Any) -> ResidueNetwork:
    dense = layer.dense
    return ResidueNetwork(
        exact_norm(layer.norm1),
        exact_linear(dense.W_in),
        exact_linear(dense.W_out),
        exact_norm(layer.norm2),
    )
