"""Calls of all operators on residues, in the sizes of ProteinMPNN, for `launch_cases`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mlff_triton.kernels.numerics.split import split_weight
from mlff_triton.kernels.residues.decode import decode
from mlff_triton.kernels.residues.edge_update import edge_update
from mlff_triton.kernels.residues.nearest_residues import nearest_residues
from mlff_triton.kernels.residues.project import project
from mlff_triton.kernels.residues.residue_edges import residue_edges
from mlff_triton.kernels.residues.residue_update import residue_update
from mlff_triton.kernels.residues.types import (
    N_PAIRS,
    N_RBF,
    BackboneWeights,
    Choices,
    DecoderWeights,
    EdgeNetwork,
    Graph,
    Projections,
    ResidueNetwork,
    Schedule,
)
from mlff_triton.kernels.types.linear import Linear

C, K, LETTERS, LAYERS, WIDE = 128, 48, 21, 3, 512
BIAS = torch.ones(C)
NORM = BIAS, BIAS, 1e-5

halves = partial(split_weight, scheme="fixed_halves")


def linear(n_in: int, n_out: int) -> Linear:
    """Return a map whose weight is split."""
    return Linear(halves(torch.ones(n_in, n_out)), torch.ones(n_out))


def updates(n_residues: int) -> object:
    """Update residues and edges."""
    x, edges = torch.ones(n_residues, C), torch.ones(n_residues, K, C)
    sources, mask = torch.zeros(n_residues, K, dtype=torch.int32), torch.ones(n_residues)
    network = EdgeNetwork(halves(torch.ones(C, C)), linear(C, C), linear(C, C))
    residues = ResidueNetwork(NORM, linear(C, WIDE), linear(WIDE, C), NORM)
    residue_update(x, edges, x, x, sources, mask, network, residues, edges[..., 0])
    project(x, Projections(halves(torch.ones(2, C, C)), torch.ones(2, 1, C)))
    return edge_update(edges, x, x, sources, network, NORM)


def features(n_residues: int) -> object:
    """Find neighbors, and compute the features of edges."""
    atoms, mask = torch.ones(1, n_residues, 4, 3), torch.ones(1, n_residues)
    found, distances = nearest_residues(atoms[:, :, 1], mask, K)
    weights = BackboneWeights(
        torch.ones(66, C),
        halves(torch.ones(N_PAIRS * N_RBF, C)),
        NORM,
        linear(C, C),
    )
    integers = torch.zeros(n_residues, dtype=torch.int64)
    rows = torch.zeros_like(found), distances, integers, integers
    return residue_edges(atoms[0], *rows, weights)


def decoding() -> object:
    """Decode residues, with all options."""
    n_residues = 60

    def ones(*shape: int) -> Tensor:
        return torch.ones(shape)

    sources = torch.zeros(n_residues, K, dtype=torch.int32)
    graph = Graph(
        *(ones(LAYERS, n_residues, K, C), ones(n_residues, C), ones(n_residues, C)),
        *(sources, sources > 0, ones(n_residues)),
    )
    square, vector = (LAYERS, C, C), (LAYERS, C)
    weights = DecoderWeights(
        *(halves(ones(*square)), ones(*vector), ones(*square), ones(*vector)),
        *(ones(*vector), ones(*vector), ones(LAYERS, C, WIDE), ones(LAYERS, WIDE)),
        *(ones(LAYERS, WIDE, C), ones(*vector), ones(*vector), ones(*vector)),
        *(ones(*square), ones(*vector), ones(*square), ones(LAYERS, LETTERS, C)),
        *(ones(C, LETTERS), ones(LETTERS), 1e-5),
    )
    order = torch.arange(n_residues, dtype=torch.int32)[None]
    per_letter = ones(n_residues, LETTERS)
    choices = Choices(
        *(per_letter, ones(n_residues), per_letter, per_letter, ones(n_residues), per_letter[None]),
        *(ones(n_residues), sources[:, 0].long(), 0.1),
    )
    return decode(graph, weights, Schedule(order, torch.arange(n_residues + 1).int()), choices)


def residue_calls() -> dict[str, Callable[[], object]]:
    """Operators on a few residues and on many."""
    made: dict[str, Callable[[], object]] = {"residues, decoding": decoding}
    for n_residues in (60, 1000):
        made[f"residues, {n_residues}, updates"] = partial(updates, n_residues)
        made[f"residues, {n_residues}, features"] = partial(features, n_residues)
    return made
