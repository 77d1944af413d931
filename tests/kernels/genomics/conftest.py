from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.genomics import convolution


@pytest.fixture(params=["pointers", "descriptors"])
def described(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels take pointers or, as on Hopper, descriptors."""
    if not torch.cuda.is_available():
        found = request.param == "descriptors"
        monkeypatch.setattr(convolution, "has_descriptors", lambda _: found)
