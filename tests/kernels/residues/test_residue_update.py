"""Updates of residues, compared with their reference in float64."""

from __future__ import annotations

import pytest

from mlff_triton.kernels.residues.reference import residue_update as reference
from mlff_triton.kernels.residues.residue_update import residue_update
from mlff_triton.testing import assert_close
from tests.kernels.residues.cases import KINDS, SIZES, Case, dtype_of, moved


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_residues_match_the_reference(size, weighted, kind, device):
    case = Case(*size)
    given = (
        *(case.x, case.edges, case.receivers, case.senders, case.sources, case.mask),
        *(case.network, case.residues, case.weights if weighted else None),
    )
    expected = reference.residue_update(*given)
    found = residue_update(*moved(given, device, kind))
    assert_close(found.cpu(), expected, 0, dtype_of(kind))
