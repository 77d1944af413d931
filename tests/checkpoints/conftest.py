"""A native checkpoint file, and a hub with an empty cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlff_triton import (
    save_model,
)
from tests.support.checkpoints import (
    native,
)
from tests.support.hub import Hub, serving, use


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(native(), path, "A card.")
    return path


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    with serving() as server:
        use(server, tmp_path / "cache", monkeypatch)
        yield server
