"""Projections of residues, compared with their reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.residues.project import project
from mlff_triton.kernels.residues.reference import project as reference
from mlff_triton.kernels.residues.types import Projections
from mlff_triton.testing import assert_close
from tests.kernels.residues.cases import KINDS, dtype_of, moved, random


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [(1, 16), (37, 32), (70, 128)], ids=str)
def test_projections_match_the_reference(size, kind, device):
    n_residues, channels = size
    torch.manual_seed(n_residues)
    weight = (random(3, channels, channels) / channels**0.5).float().double()
    given = random(n_residues, channels), Projections(weight, random(3, 1, channels))
    expected = reference.project(*given)
    for found, exact in zip(project(*moved(given, device, kind)), expected, strict=True):
        assert_close(found.cpu(), exact, 0, dtype_of(kind))
