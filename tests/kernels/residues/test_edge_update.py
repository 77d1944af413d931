"""Updates of edges, compared with their reference in float64."""

from __future__ import annotations

import pytest

from mlff_triton.kernels.residues.edge_update import edge_update
from mlff_triton.kernels.residues.reference import edge_update as reference
from mlff_triton.testing import assert_close
from tests.kernels.residues.cases import KINDS, SIZES, Case, dtype_of, moved, norm


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_edges_match_the_reference(size, kind, device):
    case = Case(*size)
    given = case.edges, case.receivers, case.senders, case.sources, case.network, norm(size[2])
    expected = reference.edge_update(*given)
    found = edge_update(*moved(given, device, kind))
    assert_close(found.cpu(), expected, 0, dtype_of(kind))
