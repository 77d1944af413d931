"""Random complexes, and blocks of kernels."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.binding import contact_energy, frame_attention, frame_network
from tests.kernels.binding.cases import Complexes

SIZES = [
    (1, 1, 1, 16),
    (2, 3, 5, 32),
    (3, 7, 23, 32),
    (2, 3, 5, 32, 40),
]  # complexes, ligand atoms, residues, channels, and rows that are not in use


@pytest.fixture(params=SIZES, ids=str)
def given(request: pytest.FixtureRequest) -> Complexes:
    """Return random complexes."""
    return Complexes(*request.param)


@pytest.fixture(params=[False, True], ids=["small", "large"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the blocks for any GPU, and under the interpreter those for large ones too."""
    if request.param and torch.cuda.is_available():
        pytest.skip("a GPU chooses by its shared memory")
    if not torch.cuda.is_available():
        for module in (frame_attention, frame_network, contact_energy):
            monkeypatch.setattr(module, "has_large_memory", lambda _: request.param)
