"""Contact maps, compared with their reference in float64."""

from __future__ import annotations

import torch

from mlff_triton.kernels.genomics.types import PairContacts
from tests.kernels.genomics.pair_cases import EPS, C, assert_matches, random, sizes
from tests.kernels.genomics.rows import halves


@halves
@sizes
def test_contacts(size, half, device):
    batch, n_bins = size
    contacts = PairContacts(
        random(C, half=False),
        random(2, C, half=False),
        random(2, C, 5, scale=0.3),
        random(2, 5, half=False),
    )
    pair = random(batch, n_bins, n_bins, C, half=False)
    organism = torch.arange(batch) % 2
    given = pair, EPS, contacts, organism, torch.float32
    assert_matches("pair_contacts", device, half, *given)
