"""Products of the heads of AlphaGenome, compared with their references in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.genomics import tracks as kernels
from mlff_triton.kernels.genomics.reference import tracks as reference
from mlff_triton.kernels.genomics.types import (
    LOGITS,
    PROBABILITIES,
    SQUASHED,
    TRACKS,
    TrackHead,
    TrackPlan,
    TrackWeights,
)

K = 24
HEADS = (
    TrackHead(0, 130, TRACKS),
    TrackHead(256, 20, SQUASHED),
    TrackHead(384, 5, LOGITS),
    TrackHead(512, 11, PROBABILITIES),
)


def doubled(weights: TrackWeights) -> TrackWeights:
    return TrackWeights(*(w.double() for w in weights))


@pytest.mark.parametrize("length", [1, 70, 130])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "chosen", [HEADS[:2], HEADS[1:2], HEADS[2:]], ids=["tracks", "one", "sites"]
)
def test_tracks(chosen, scaled, length, device):
    torch.manual_seed(length)
    weights = TrackWeights(
        torch.randn(2, 640, K).half(), 4 * torch.randn(2, 640), *torch.rand(2, 2, 640)
    )
    x, organism = torch.randn(2, length, K).half(), torch.tensor([1, 0])
    plan = TrackPlan.of(chosen, 2 * length, torch.device(device))
    wanted = reference.tracks(
        x.double(), doubled(weights), plan, organism, torch.float64, scaled=scaled
    )
    weights = TrackWeights(*(w.to(device) for w in weights))
    given = x.to(device), weights, plan, organism.to(device), torch.float32
    found = kernels.tracks(*given, scaled=scaled)
    for parts, exact in zip(found, wanted, strict=True):
        for part, truth in zip(parts, exact, strict=True):
            assert part.shape == truth.shape
            torch.testing.assert_close(part.cpu().double(), truth, rtol=1e-5, atol=1e-4)


def test_small_tracks_keep_their_digits(device):
    bias = torch.linspace(-30, 30, 128).expand(1, -1).contiguous()
    ones = torch.ones(1, 128)
    weights = TrackWeights(torch.zeros(1, 128, 8).half(), bias, ones, ones)
    plan = TrackPlan.of((TrackHead(0, 128, TRACKS),), 1, torch.device(device))
    ((found,),) = kernels.tracks(
        torch.zeros(1, 1, 8).half().to(device),
        TrackWeights(*(w.to(device) for w in weights)),
        plan,
        torch.zeros(1).long().to(device),
        torch.float32,
        scaled=True,
    )
    exact = torch.log1p(bias.double().exp())
    torch.testing.assert_close(found[0].cpu().double(), exact, rtol=3e-6, atol=0)


@pytest.mark.parametrize("n_bins", [1, 2])
def test_binned_linear(n_bins, device):
    x, weight = torch.randn(2, 256, K).half(), (torch.randn(40, K) / 4).half()
    bias = torch.randn(2, n_bins, 40).half()
    exact = reference.binned_linear(x.double(), weight.double(), bias.double())
    found = kernels.binned_linear(*(t.to(device) for t in (x, weight, bias)))
    torch.testing.assert_close(found.cpu().double(), exact, rtol=2e-3, atol=2e-3)
