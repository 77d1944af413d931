"""A native checkpoint file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlff_triton import (
    save_model,
)
from tests.support.checkpoints import (
    native,
)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(native(), path, "A card.")
    return path
