"""Calls of all operators of genomic models, for `launch_cases`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mlff_triton.kernels.genomics import convolution
from mlff_triton.kernels.genomics.attention import capped_attention, relative_attention
from mlff_triton.kernels.genomics.attention_inputs import attention_inputs
from mlff_triton.kernels.genomics.attention_pool import attention_pool, paired_rows
from mlff_triton.kernels.genomics.attention_residual import attention_residual
from mlff_triton.kernels.genomics.pair_attention_inputs import pair_attention_inputs
from mlff_triton.kernels.genomics.pair_contacts import pair_contacts
from mlff_triton.kernels.genomics.pair_junctions import junction_reads, rotated_sites
from mlff_triton.kernels.genomics.pair_maxima import pair_maxima
from mlff_triton.kernels.genomics.pair_mlp import pair_mlp
from mlff_triton.kernels.genomics.pair_pool import pair_pool
from mlff_triton.kernels.genomics.pair_scores import pair_scores
from mlff_triton.kernels.genomics.tracks import binned_linear, tracks
from mlff_triton.kernels.genomics.types import (
    Activation,
    PairBiases,
    PairContacts,
    PairMLP,
    TrackHead,
    TrackPlan,
    TrackWeights,
)

C, P = 128, 64  # channels and bins of pairs


def half(*shape: int) -> Tensor:
    """Return zeros in half precision."""
    return torch.zeros(shape).half()


def rows(length: int) -> object:
    """Convolve, pair and pool rows of sequences, with all kinds of residuals."""
    x, ones = half(2, length, C), torch.ones(C)
    activation, weight = Activation(ones, ones), half(C, 5, C)
    convolution.sequence_windows(torch.ones(2, length, 4), 15, x[..., 64:])
    for residual in (None, x, x[..., :64], x[:, : length // 2].contiguous()):
        for taps in (weight, weight[:, :1].contiguous()):
            options = {"residual": residual, "activation": activation}
            convolution.convolution(x, taps, ones, **options)
    square = weight[:, 0].contiguous()
    paired_rows(x, square, ones, None)
    pairs = paired_rows(x, square, ones, x)
    return attention_pool(pairs, square, activation=activation, with_rows=False)


def few_rows() -> object:
    """Convolve so few rows that sums are split, with all kinds of residuals."""
    x, ones = half(2, 32, 16 * C), torch.ones(C)
    residuals = None, half(2, 32, C), half(2, 32, C // 2), half(2, 16, C)
    return [
        convolution.convolution(
            x, half(C, 5, 16 * C), ones, residual=residual, activation=Activation(ones, ones)
        )
        for residual in residuals
    ]


def attention(length: int) -> object:
    """Attend with relative positions, and with biases of bins, and add the result."""
    q, v = half(1, length, 8, 64), half(1, length, 8, 192)
    relative_attention(q, q, v, half(2 * length - 1, 8, 64), half(8, 64), half(8, 64))
    bins = length // 16
    shared = half(1, length, 128), half(1, length, 192)
    capped_attention(half(1, length, 8, 128), *shared, half(1, bins, bins, 8))
    return attention_residual(torch.zeros(length, 1536), half(length, 1536))


def pairs_of_bins() -> object:
    """Compute all parts of the representation of pairs."""
    norms = tuple((half(n), half(n), 1e-5) for n in (128, 128, 192))
    angles = torch.zeros(16 * P, 64)
    attention_inputs(half(1, 16 * P, 1344), *norms, angles, angles)
    pair_pool(half(1, 16 * P, 1536), half(1536), half(1536), half(1536), 1e-5, 16)
    pair_scores(half(1, P, 32 * 384), torch.zeros(2 * P - 1).int(), 32, 64)
    pair = torch.zeros(1, P, P, C)
    columns = half(32, C), half(C), 1e-5, half(C, 3 * C), half(3 * C)
    pair_attention_inputs(half(32, 1, P, P), half(1, P, 2 * C), pair, *columns)
    weights = PairMLP(half(C, 256), half(256), half(256, C), half(C))
    biases = PairBiases(torch.zeros(2, C), torch.zeros(2, C), half(2, C, 8))
    pair_mlp(pair, half(1, P, P, C), 1e-5, weights, biases)
    contacts = PairContacts(torch.zeros(C), torch.zeros(2, C), half(2, C, 28), torch.zeros(2, 28))
    organism = torch.zeros(1, dtype=torch.int64)
    return pair_contacts(pair, 1e-5, contacts, organism, torch.float32)


def heads() -> object:
    """Compute tracks of all kinds, and what surrounds them."""
    length, width, table = 1024, 2048, torch.zeros(2, 2048)
    weights = TrackWeights(half(2, width, 1536), table, table, table)
    for kinds in ((0, 1), (2, 3)):
        wanted = tuple(TrackHead(1024 * k, 700, kind) for k, kind in enumerate(kinds))
        plan = TrackPlan.of(wanted, length, torch.device("cpu"))
        organism = torch.zeros(1, dtype=torch.int64)
        tracks(half(1, length, 1536), weights, plan, organism, torch.float32)
    activation = Activation(torch.zeros(768), torch.zeros(768))
    pair_maxima(half(1, length, 768), activation, activation)
    return binned_linear(half(1, length, 768), half(1536, 768), half(1, length // 128, 1536))


def junctions(n_sites: int) -> object:
    """Compute the reads of junctions of both strands."""
    tissues, channels, organism = 367, 768, torch.zeros(1, dtype=torch.int64)
    factor, angles = half(2, tissues, channels), torch.zeros(1, n_sites, channels // 2)
    rotated_sites(half(1, n_sites, channels), factor, factor, angles, angles, organism)
    sites, mask = torch.zeros(1, 4, n_sites, dtype=torch.int64), torch.zeros(2, tissues).bool()
    out = torch.zeros(1, n_sites, n_sites, 2 * tissues)
    for strand in range(2):
        some = out[..., strand * tissues : (strand + 1) * tissues]
        given = sites[:, 2 * strand : 2 * strand + 2], mask, organism, some
        junction_reads(half(1, tissues, n_sites, n_sites), 1024.0, *given)
    return out


def genomic_calls() -> dict[str, Callable[[], object]]:
    """Operators on a few rows and on many."""
    return {
        "genomics, 64 rows": partial(rows, 64),
        "genomics, 8000 rows": partial(rows, 8000),
        "genomics, few rows of many channels": few_rows,
        "genomics, attention": partial(attention, 1024),
        "genomics, pairs": pairs_of_bins,
        "genomics, heads": heads,
        "genomics, junctions": partial(junctions, 100),
    }
