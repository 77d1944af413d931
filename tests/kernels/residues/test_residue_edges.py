"""Features of edges between residues, compared with their reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.residues.reference import residue_edges as reference
from mlff_triton.kernels.residues.residue_edges import residue_edges
from mlff_triton.kernels.residues.types import BackboneWeights
from mlff_triton.kernels.types.linear import Linear
from mlff_triton.testing import assert_close
from tests.kernels.residues.cases import KINDS, dtype_of, moved, norm, random


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("residues", "neighbors", "channels"), [(1, 1, 16), (40, 7, 128)])
def test_edges_match_the_reference(residues, neighbors, channels, kind, device):
    torch.manual_seed(residues)
    atoms = (5 * torch.randn(residues, 1, 3) + 1.5 * torch.randn(residues, 4, 3)).double()
    sources = torch.randint(residues, (residues, neighbors)).int()
    numbers, chains = torch.randint(80, (residues,)), torch.randint(2, (residues,))
    weights = BackboneWeights(
        random(66, channels),
        torch.cat([torch.randn(25, 16, channels), torch.zeros(3, 16, channels)]).double() / 5,
        norm(channels),
        Linear(random(channels, channels) / 8, random(channels)),
    )
    distances = 20 * torch.rand(residues, neighbors).double()
    given = atoms, sources, distances, numbers, chains, weights
    expected = reference.residue_edges(*given)
    found = residue_edges(*moved(given, device, kind))
    assert_close(found.cpu(), expected, 0, dtype_of(kind))
