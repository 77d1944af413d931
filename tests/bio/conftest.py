"""Tests of protein language models run on a GPU if there is one, else under the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.support.kernel_fixtures import bounded, device, unchecked_sums
from tests.support.language_models import NAMES
from tests.support.quick_interpreter import quick_interpreter

__all__ = ["bounded", "device", "quick_interpreter", "unchecked_sums"]


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest, device: str) -> nn.Module:
    """Make a tiny language model of transformers."""
    from tests.support.huggingface import make  # skips the test if transformers is missing

    return make(request.param, device, torch.float32)


@pytest.fixture
def ids(device: str) -> Tensor:
    """Make random tokens."""
    return torch.randint(5, 24, (2, 9), device=device)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore NumPy's warnings: kernels also compute unused rows, from uninitialized memory."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:Conversion of an array with ndim"))
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
