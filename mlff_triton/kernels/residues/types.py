"""Weights and arguments of graph networks over residues, and of their decoding.

The first linear map of a network of edges acts on the receiving residue, the edge and the sending
residue. It is split into three parts: those of the residues are computed once per residue, and only
the part of the edge is computed once per edge. Weights of these networks are transposed,
[inputs, outputs]. In decoding, there are B proteins of L residues, R = B L rows, V amino acids and
D layers.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from mlff_triton.kernels.types.linear import Linear
from mlff_triton.kernels.types.norm import Norm


class DecoderWeights(NamedTuple):
    """Weights of all D layers, stacked and transposed.

    Attributes
    ----------
    second, second_bias, third, third_bias : [D, C, C], [D, C]
        Second and third maps of the messages.
    norm, norm_bias : [D, C]
        Normalizations after the messages.
    up, up_bias, down, down_bias : [D, C, H], [D, H], [D, H, C], [D, C]
        Maps of the residues.
    last_norm, last_norm_bias : [D, C]
        Normalizations after the maps of the residues.
    receiver, receiver_bias, sender : [D, C, C], [D, C], [D, C, C]
        Parts of the messages' first maps for residues; not used in the first layer.
    sequence : [D, V, C]
        Part of the messages' first maps for the amino acid of the sender.
    out, out_bias : [C, V], [V]
        Map to logits.
    eps : float
        Added to the variances in the normalizations.
    """

    second: Tensor
    second_bias: Tensor
    third: Tensor
    third_bias: Tensor
    norm: Tensor
    norm_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor
    last_norm: Tensor
    last_norm_bias: Tensor
    receiver: Tensor
    receiver_bias: Tensor
    sender: Tensor
    sequence: Tensor
    out: Tensor
    out_bias: Tensor
    eps: float


class Graph(NamedTuple):
    """The residues before decoding.

    Attributes
    ----------
    messages : [D, R, K, C]
        First hidden values of each message before GELU, without the terms that decoding adds. The
        first layer includes the receiver's part, and all layers include the part of senders that
        are decoded later.
    senders : [R, C]
        Each residue's part as a decoded sender in the first layer, without its amino acid.
    residues : [R, C]
        Encoded residues.
    sources : int32 [R, K]
        Row of each edge's sender.
    is_decoded : bool [R, K]
        True for senders that are decoded before the receiver.
    mask : [R]
        1 for residues with known positions.
    """

    messages: Tensor
    senders: Tensor
    residues: Tensor
    sources: Tensor
    is_decoded: Tensor
    mask: Tensor


class Schedule(NamedTuple):
    """Order of decoding. All residues of a group get the same amino acid.

    Attributes
    ----------
    order : int32 [B, L]
        Row of each residue, group by group.
    groups : int32 [G + 1]
        Group ``g`` holds ``order[:, groups[g]:groups[g + 1]]``.
    """

    order: Tensor
    groups: Tensor


class Choices(NamedTuple):
    """Conditions of the draws from logits z: the result is the argmax of p / noise.

        p = norm(factor * (keep * softmax(z / temperature + shift) + addend))

    Attributes
    ----------
    shift : [R, V]
        Added to the logits.
    keep : [R] or None
        Factors of probabilities; None for 1.
    addend : [R, V] or None
        Added to probabilities.
    factor : [R, V] or None
        Factors of probabilities, which are normalized afterwards.
    share : [R]
        Weight of each residue's logits in the sum over its group.
    noise : [B, G, V]
        Exponentially distributed random numbers.
    designed : [R]
        1 for residues to design, 0 for those that keep their amino acids.
    given : int64 [R]
        Amino acids of the residues that keep them.
    temperature : float
        Divisor of logits.
    """

    shift: Tensor
    keep: Tensor | None
    addend: Tensor | None
    factor: Tensor | None
    share: Tensor
    noise: Tensor
    designed: Tensor
    given: Tensor
    temperature: float


ATOMS = ("N", "CA", "C", "O", "CB")
"""Atoms of a residue; CB is virtual."""

N_PAIRS = 28
"""Number of pairs of atoms in kernels: 25, and three with zero weights."""

N_RBF = 16
NEAREST, FARTHEST = 2.0, 22.0
"""Number of radial basis functions, and centers of the first and the last one in Å."""

FARTHEST_OFFSET = 32
"""Offset in the sequence to which larger offsets are clamped."""


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
        Normalization after the two maps.
    """

    norm: Norm
    up: Linear
    down: Linear
    last_norm: Norm
