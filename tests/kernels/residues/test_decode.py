"""Decoding, compared with its reference, and its order with every possible one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.residues.decode import decode
from mlff_triton.kernels.residues.reference import decode as reference
from mlff_triton.kernels.residues.types import Choices, DecoderWeights, Graph, Schedule
from mlff_triton.testing import assert_close
from tests.kernels.residues.cases import moved

DTYPES = [torch.float32, torch.float64]
N_PROTEINS, LENGTH, NEIGHBORS, LETTERS, LAYERS = 2, 7, 5, 21, 3


def make_case(
    channels: int, *, tied: bool, full: bool, n_proteins: int = N_PROTEINS
) -> tuple[Graph, DecoderWeights, Schedule, Choices]:
    """Make random weights, proteins, an order, and perhaps groups and all options."""
    torch.manual_seed(channels)
    n = n_proteins * LENGTH

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape).float().double() / max(shape[-2:][0], 1) ** 0.5

    orders = torch.stack([torch.randperm(LENGTH) for _ in range(n_proteins)])
    if tied:
        orders[1] = orders[0]
    rank = torch.argsort(orders, 1)
    sources = torch.stack([torch.randperm(LENGTH)[:NEIGHBORS] for _ in range(n)])
    first = LENGTH * torch.arange(n_proteins).repeat_interleave(LENGTH)
    sources += first[:, None]
    ranks = rank.flatten()
    graph = Graph(
        random(LAYERS, n, NEIGHBORS, channels),
        random(n, channels),
        random(n, channels),
        sources.int(),
        ranks[:, None] > ranks[sources],
        (torch.arange(n) % 5 != 2).double(),
    )
    square, vector, wide = (channels, channels), (LAYERS, channels), 4 * channels
    weights = DecoderWeights(
        random(LAYERS, *square), random(*vector), random(LAYERS, *square), random(*vector),
        random(*vector), random(*vector),
        random(LAYERS, channels, wide), random(LAYERS, wide),
        random(LAYERS, wide, channels), random(*vector),
        random(*vector), random(*vector),
        random(LAYERS, *square), random(*vector), random(LAYERS, *square),
        random(LAYERS, LETTERS, channels), 4 * random(channels, LETTERS), random(LETTERS),
        1e-5,
    )  # fmt: skip
    groups = torch.tensor([0, 1, 4, 5, LENGTH]) if tied else torch.arange(LENGTH + 1)
    schedule = Schedule((orders + first.view(n_proteins, LENGTH)).int(), groups.int())
    n_groups = len(groups) - 1
    positive = torch.rand(n, LETTERS).float().double() + 0.1
    choices = Choices(
        random(n, LETTERS),
        torch.full((n,), 0.75).double() if full else None,
        positive / 8 if full else None,
        positive if full else None,
        torch.ones(n).double() if not tied else torch.rand(n).float().double(),
        torch.empty(n_proteins, n_groups, LETTERS).exponential_().float().double(),
        (torch.arange(n) % 3 != 1).double(),
        torch.randint(LETTERS, (n,)),
        0.5,
    )
    return graph, weights, schedule, choices


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["free", "tied"])
@pytest.mark.parametrize("full", [False, True], ids=["plain", "all options"])
@pytest.mark.parametrize("channels", [16, 128])
def test_matches_the_reference(channels, full, tied, dtype, device):
    case = make_case(channels, tied=tied, full=full)
    sequence, probabilities = reference.decode(*case)
    *parts, choices = moved(case, device, dtype)
    if full:  # arrays of NumPy often make probabilities float64
        choices = choices._replace(shift=choices.shift.double(), noise=choices.noise.double())
    found, found_probabilities = decode(*parts, choices)
    assert torch.equal(found.cpu(), sequence)
    assert_close(found_probabilities.cpu(), probabilities, 0, dtype)


@pytest.mark.gpu
def test_more_proteins_than_a_gpu_runs_at_once():
    """Each has one program, and no program waits for one of another protein."""
    case = make_case(16, tied=False, full=False, n_proteins=5000)
    sequence, _ = reference.decode(*case)
    found, _ = decode(*moved(case, "cuda", torch.float64))
    assert torch.equal(found.cpu(), sequence)
