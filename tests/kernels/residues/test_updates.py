"""Updates of edges and residues, compared with their references in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.residues.edge_update import edge_update
from mlff_triton.kernels.residues.project import project
from mlff_triton.kernels.residues.reference import edge_update as edge_reference
from mlff_triton.kernels.residues.reference import project as project_reference
from mlff_triton.kernels.residues.reference import residue_update as residue_reference
from mlff_triton.kernels.residues.residue_update import residue_update
from mlff_triton.kernels.types.residue_network import Projections
from mlff_triton.testing import assert_close
from tests.kernels.residues.cases import KINDS, Case, dtype_of, moved, norm, random

SIZES = [(1, 1, 16), (5, 3, 32), (37, 20, 16), (9, 48, 128)]  # R, K, C


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_edges_match_the_reference(size, kind, device):
    case = Case(*size)
    given = case.edges, case.receivers, case.senders, case.sources, case.network, norm(size[2])
    expected = edge_reference.edge_update(*given)
    found = edge_update(*moved(given, device, kind))
    assert_close(found.cpu(), expected, 0, dtype_of(kind))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_residues_match_the_reference(size, weighted, kind, device):
    case = Case(*size)
    given = (
        *(case.x, case.edges, case.receivers, case.senders, case.sources, case.mask),
        *(case.network, case.residues, case.weights if weighted else None),
    )
    expected = residue_reference.residue_update(*given)
    found = residue_update(*moved(given, device, kind))
    assert_close(found.cpu(), expected, 0, dtype_of(kind))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", [(1, 16), (37, 32), (70, 128)], ids=str)
def test_projections_match_the_reference(size, kind, device):
    n_residues, channels = size
    torch.manual_seed(n_residues)
    weight = (random(3, channels, channels) / channels**0.5).float().double()
    given = random(n_residues, channels), Projections(weight, random(3, 1, channels))
    expected = project_reference.project(*given)
    for found, exact in zip(project(*moved(given, device, kind)), expected, strict=True):
        assert_close(found.cpu(), exact, 0, dtype_of(kind))
