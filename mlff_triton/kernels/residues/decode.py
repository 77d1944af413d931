"""Autoregressive decoding of residues in one launch.

A residue depends only on those of its neighbors that are decoded before it. So several programs
take the residues of a protein in turn, and each program waits only for the neighbors of its next
residue. All programs run at the same time, and no residue waits for a later one, so the first
unfinished residue can always proceed.

The edges' part of the first map of each message is computed beforehand. For each residue and layer,
this leaves one matrix product for the messages and a few matrix-vector products.

Source: J. Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
https://doi.org/10.1126/science.add2187.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton._common.availability import is_interpreting
from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.hardware import multiprocessors
from mlff_triton.kernels.numerics.product import add_linear, bias_sum, end_sum, scheme_of
from mlff_triton.kernels.residues.types import Choices, DecoderWeights, Graph, Schedule

PROGRAMS = 16
"""Largest number of programs per protein, as more would only wait."""


@triton.jit
def _vector_product(x, weight_ptr, n_out, column, N: tl.constexpr):
    """Multiply a vector [C] by a block of N columns of a weight [C, n_out]."""
    k, n = tl.arange(0, x.shape[0]), column + tl.arange(0, N)
    weight = tl.load(weight_ptr + k[:, None] * n_out + n[None, :], (n < n_out)[None, :], other=0.0)
    return tl.sum(x[:, None] * weight.to(x.dtype), 0)


@triton.jit
def _normalize(x, weight_ptr, bias_ptr, eps):
    """Normalize a vector [C]."""
    columns = tl.arange(0, x.shape[0])
    centered = x - tl.sum(x, 0) / x.shape[0]
    variance = tl.sum(centered * centered, 0) / x.shape[0]
    y = centered / tl.sqrt((variance + eps).to(x.dtype))
    return y * tl.load(weight_ptr + columns) + tl.load(bias_ptr + columns)


@triton.jit
def _wait(done_ptr, sources, mask):
    """Wait until all sources [K] in a mask are done, and make their results visible."""
    waiting = tl.sum(mask.to(tl.int32), 0)
    while waiting > 0:
        done = tl.load(done_ptr + sources, mask, other=1, volatile=True)
        waiting = tl.sum((done == 0).to(tl.int32), 0)
    tl.atomic_add(done_ptr + sources, 0, mask, sem="acquire")


@triton.jit
def _update(
    x,
    k,
    row,
    edge,
    sources,
    inside,
    decoded,
    graph,
    weights,
    senders_ptr,
    n_residues,
    n_neighbors,
    n_hidden,
    eps,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
):
    """Return a row's residue x [C] after layer k, and store its part as a sender in layer k."""
    columns = tl.arange(0, C)
    square = k * C * C
    hidden = tl.load(
        graph.messages + (k * n_residues * n_neighbors + edge)[:, None] * C + columns[None, :],
        inside[:, None],
        other=0.0,
    ).to(ACCUMULATE)
    hidden += tl.load(
        senders_ptr + (k * n_residues + sources)[:, None] * C + columns[None, :],
        decoded[:, None],
        other=0.0,
        cache_modifier=".cg",
    )
    if k > 0:
        sender = _vector_product(x, weights.sender + square, C, 0, C)
        tl.store(senders_ptr + (k * n_residues + row) * C + columns, sender)
        receiver = _vector_product(x, weights.receiver + square, C, 0, C)
        receiver += tl.load(weights.receiver_bias + k * C + columns)
        hidden += receiver[None, :]
    second = weights.second + (2 * square if PRECISION == "fixed_halves" else square)
    bias = weights.second_bias + k * C
    hidden = activate(hidden, "gelu")
    acc = bias_sum(bias, 0, ACCUMULATE, PRECISION, K, C)
    hidden = add_linear(hidden, second, acc, C, C, 0, 0, PRECISION)
    hidden = end_sum(hidden, PRECISION)
    hidden = tl.where(inside[:, None], activate(hidden, "gelu"), 0.0)
    message = _vector_product(tl.sum(hidden, 0), weights.third + square, C, 0, C)
    message += n_neighbors * tl.load(weights.third_bias + k * C + columns)
    x += message
    x = _normalize(x, weights.norm + k * C, weights.norm_bias + k * C, eps)
    y = x + tl.load(weights.down_bias + k * C + columns)
    for first in range(0, n_hidden, C):
        wide = _vector_product(x, weights.up + k * C * n_hidden, n_hidden, first, C)
        wide += tl.load(weights.up_bias + k * n_hidden + first + columns)
        down = weights.down + (k * n_hidden + first) * C
        y += _vector_product(activate(wide, "gelu"), down, C, 0, C)
    x = _normalize(y, weights.last_norm + k * C, weights.last_norm_bias + k * C, eps)
    return x * tl.load(graph.mask + row)


@triton.jit
def _draw(
    logits,
    row,
    protein,
    group,
    n_groups,
    letters,
    is_letter,
    choices,
    temperature,
    n_letters,
    ACCUMULATE: tl.constexpr,
):
    """Return the probabilities [V] of a group's amino acids, and the one that is drawn."""
    cell = row * n_letters + letters
    logits = (logits / temperature).to(ACCUMULATE)
    logits += tl.load(choices.shift + cell, is_letter, other=float("-inf"))
    p = tl.exp(logits - tl.max(logits, 0))
    p = p / tl.sum(p, 0)
    if choices.keep is not None:
        p *= tl.load(choices.keep + row)
    if choices.addend is not None:
        p += tl.load(choices.addend + cell, is_letter, other=0.0)
    if choices.factor is not None:
        p *= tl.load(choices.factor + cell, is_letter, other=0.0)
        p = p / tl.sum(p, 0)
    pointers = choices.noise + (protein * n_groups + group) * n_letters + letters
    noise = tl.load(pointers, is_letter, other=1.0)
    letter = tl.argmax(tl.where(is_letter, p / noise, -1.0), 0).to(tl.int64)
    if tl.load(choices.designed + row) == 0:
        letter = tl.load(choices.given + row)
    return p, letter


@triton.jit
def _decode_kernel(
    graph,
    weights,
    schedule,
    choices,
    senders_ptr,
    done_ptr,
    sequence_ptr,
    probabilities_ptr,
    n_residues,
    length,
    n_groups,
    n_neighbors,
    n_hidden,
    n_letters,
    temperature: tl.float64,
    eps: tl.float64,
    LAYERS: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
):
    """Write the sequence [R] and probabilities [R, V]. Grid: (programs per protein, B).

    Reads `Graph`, `DecoderWeights`, `Schedule` and `Choices`, without the members that are separate
    arguments. Writes the parts of residues as senders [LAYERS, R, C], and flags of finished
    residues [R], which start from zero. The group of each residue follows the flags.
    """
    protein, n_programs = tl.program_id(1), tl.num_programs(0)
    columns, slot, letters = tl.arange(0, C), tl.arange(0, K), tl.arange(0, V)
    is_letter = letters < n_letters
    for group in range(tl.program_id(0), n_groups, n_programs):
        start, stop = tl.load(schedule.groups + group), tl.load(schedule.groups + group + 1)
        logits = tl.zeros((V,), ACCUMULATE)
        row = tl.zeros((), tl.int64)
        for member in range(start, stop):
            row = tl.load(schedule.order + protein * length + member).to(tl.int64)
            edge = row * n_neighbors + slot
            inside = slot < n_neighbors
            sources = tl.load(graph.sources + edge, inside, other=0).to(tl.int64)
            decoded = tl.load(graph.is_decoded + edge, inside, other=0) != 0
            group_of = tl.load(done_ptr + n_residues + sources, decoded, other=0)
            _wait(done_ptr, sources, decoded & (group_of != group))
            tl.debug_barrier()
            x = tl.load(graph.residues + row * C + columns).to(ACCUMULATE)
            for k in range(LAYERS):
                x = _update(
                    x,
                    k,
                    row,
                    edge,
                    sources,
                    inside,
                    decoded,
                    graph,
                    weights,
                    senders_ptr,
                    n_residues,
                    n_neighbors,
                    n_hidden,
                    eps,
                    PRECISION,
                    ACCUMULATE,
                    C,
                    K,
                )
            found = _vector_product(x, weights.out, n_letters, 0, V)
            found += tl.load(weights.out_bias + letters, is_letter, other=0.0)
            logits += tl.load(choices.share + row) * found

        p, letter = _draw(
            logits,
            row,
            protein,
            group,
            n_groups,
            letters,
            is_letter,
            choices,
            temperature,
            n_letters,
            ACCUMULATE,
        )
        tl.debug_barrier()
        for member in range(start, stop):
            row = tl.load(schedule.order + protein * length + member).to(tl.int64)
            tl.store(sequence_ptr + row, letter)
            tl.store(probabilities_ptr + row * n_letters + letters, p, is_letter)
            for k in range(LAYERS):
                pointers = senders_ptr + (k * n_residues + row) * C + columns
                sender = tl.load(pointers, cache_modifier=".cg")
                part = tl.load(weights.sequence + (k * n_letters + letter) * C + columns)
                tl.store(pointers, sender + part)
        tl.debug_barrier()
        for member in range(start, stop):
            row = tl.load(schedule.order + protein * length + member).to(tl.int64)
            tl.atomic_xchg(done_ptr + row, 1, sem="release")


def decode(
    graph: Graph, weights: DecoderWeights, schedule: Schedule, choices: Choices
) -> tuple[Tensor, Tensor]:
    """Draw amino acids one after another, each given those drawn before.

    Parameters
    ----------
    graph : Graph
        The residues.
    weights : DecoderWeights
        The layers, whose hidden size is a multiple of C.
    schedule : Schedule
        Order and groups.
    choices : Choices
        Conditions of the draws.

    Returns
    -------
    sequence : int64 [R]
        Amino acids.
    probabilities : [R, V]
        Probabilities from which they were drawn.
    """
    n_layers, n_residues, n_neighbors, channels = graph.messages.shape
    n_proteins, length = schedule.order.shape
    n_groups, n_letters = len(schedule.groups) - 1, len(weights.out_bias)
    device = graph.messages.device
    senders = graph.messages.new_zeros(n_layers, n_residues, channels)
    senders[0] = graph.senders
    # Flags of finished residues, and the group of each residue.
    done = torch.zeros(2, n_residues, dtype=torch.int32, device=device)
    sizes = schedule.groups.diff().long()
    group_of = torch.arange(n_groups, dtype=torch.int32, device=device).repeat_interleave(
        sizes, output_size=length
    )
    done[1].scatter_(0, schedule.order.flatten().long(), group_of.repeat(n_proteins))
    sequence = torch.zeros_like(choices.given)
    probabilities = torch.zeros_like(choices.shift)
    at_once = 1 if is_interpreting() else multiprocessors(device) // max(n_proteins, 1)
    programs = max(1, min(PROGRAMS, at_once, n_groups))
    with torch.cuda.device_of(senders):
        _decode_kernel[(programs, n_proteins)](
            # Members that are separate arguments are left out. Numbers in tuples would be float32.
            graph._replace(senders=None),  # type: ignore[arg-type]
            weights._replace(eps=None),  # type: ignore[arg-type]
            schedule,
            choices._replace(temperature=None),  # type: ignore[arg-type]
            senders,
            done,
            sequence,
            probabilities,
            n_residues,
            length,
            n_groups,
            n_neighbors,
            weights.up.shape[2],
            n_letters,
            choices.temperature,
            weights.eps,
            LAYERS=n_layers,
            PRECISION=scheme_of(weights.second, graph.messages),
            ACCUMULATE=accumulator(graph.messages),
            C=channels,
            K=max(triton.next_power_of_2(n_neighbors), 16),
            V=triton.next_power_of_2(n_letters),
            num_warps=8,
            num_stages=1,
            # Programs of one protein wait for each other, so that all have to run at once.
            launch_cooperative_grid=programs > 1 and not is_interpreting(),
        )
    return sequence, probabilities
