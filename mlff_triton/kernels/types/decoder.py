"""Arguments of the autoregressive decoding of residues.

B proteins of L residues; R = B L rows; V amino acids; D layers.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


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
        Normalizations after them.
    receiver, receiver_bias, sender : [D, C, C], [D, C], [D, C, C]
        Parts of the messages' first maps for residues; not used in the first layer.
    sequence : [D, V, C]
        Part of the messages' first maps for the amino acid of the sender.
    out, out_bias : [C, V], [V]
        Map to logits.
    eps : float
        Of the normalizations.
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
        First hidden values of each message before GELU, without what decoding adds: in the first
        layer with the receiver's part, in all with that of senders that are decoded later.
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
    """Order of decoding. All residues of a group get one amino acid.

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
        Those amino acids.
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
