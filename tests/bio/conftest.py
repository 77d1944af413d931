"""Tests of protein language models run on a GPU if there is one, else under the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernel_fixtures import device

__all__ = ["device"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore NumPy's warnings: kernels also compute unused rows, from uninitialized memory."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:Conversion of an array with ndim"))
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
