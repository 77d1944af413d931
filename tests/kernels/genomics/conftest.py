from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.genomics import convolution, sequence_tiles


@pytest.fixture(params=["pointers", "descriptors"])
def described(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels take pointers or, as on Hopper, descriptors."""
    if not torch.cuda.is_available():
        found = request.param == "descriptors"
        for module in (sequence_tiles, convolution):
            monkeypatch.setattr(module, "has_descriptors", lambda _: found)
