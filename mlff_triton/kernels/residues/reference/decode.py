"""Autoregressive decoding of residues, in plain PyTorch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import gelu

from mlff_triton.kernels.ops.reference.layer_norm import layer_norm
from mlff_triton.kernels.residues.types import Choices, DecoderWeights, Graph, Schedule


def decode(
    graph: Graph, weights: DecoderWeights, schedule: Schedule, choices: Choices
) -> tuple[Tensor, Tensor]:
    """Compute `mlff_triton.kernels.residues.decode.decode`."""
    senders = graph.messages.new_zeros(len(graph.messages), *graph.residues.shape)
    senders[0] = graph.senders
    sequence = torch.zeros_like(choices.given)
    probabilities = torch.zeros_like(choices.shift)
    bounds = schedule.groups.tolist()
    for group, (start, stop) in enumerate(pairwise(bounds)):
        rows = schedule.order[:, start:stop].long()  # [B, M]
        logits = torch.zeros_like(choices.noise[:, 0])
        for row in rows.unbind(1):
            logits += choices.share[row, None] * _logits(row, graph, weights, senders)
        last = rows[:, -1]
        p = _probabilities(logits / choices.temperature, last, choices)
        drawn = (p / choices.noise[:, group]).argmax(1)
        drawn = torch.where(choices.designed[last] > 0, drawn, choices.given[last])
        sequence[rows] = drawn[:, None]
        probabilities[rows] = p[:, None]
        senders[:, rows] += weights.sequence[:, drawn][:, :, None]
    return sequence, probabilities


def _logits(row: Tensor, graph: Graph, w: DecoderWeights, senders: Tensor) -> Tensor:
    """Compute all layers for one residue per protein [B], and store their parts as senders."""
    x = graph.residues[row]
    sources = graph.sources[row].long()
    decoded = graph.is_decoded[row][..., None]
    for k in range(len(w.second)):
        if k:
            senders[k, row] = x @ w.sender[k]
        hidden = graph.messages[k, row] + decoded * senders[k, sources]
        if k:
            hidden = hidden + (x @ w.receiver[k] + w.receiver_bias[k])[:, None]
        hidden = gelu(gelu(hidden) @ w.second[k] + w.second_bias[k])
        message = (hidden @ w.third[k] + w.third_bias[k]).sum(1)
        x = layer_norm(x + message, w.norm[k], w.norm_bias[k], w.eps)
        hidden = gelu(x @ w.up[k] + w.up_bias[k])
        change = hidden @ w.down[k] + w.down_bias[k]
        x = layer_norm(x + change, w.last_norm[k], w.last_norm_bias[k], w.eps)
        x = graph.mask[row, None] * x
    return x @ w.out + w.out_bias


def _probabilities(logits: Tensor, row: Tensor, choices: Choices) -> Tensor:
    p = (logits + choices.shift[row]).softmax(1)
    if choices.keep is not None:
        p = choices.keep[row, None] * p
    if choices.addend is not None:
        p = p + choices.addend[row]
    if choices.factor is not None:
        p = choices.factor[row] * p
        p = p / p.sum(1, keepdim=True)
    return p
