"""Tests that run kernels: on the GPU if there is one, otherwise in Triton's interpreter.

Kernels are imported in fixtures, as importing `tests.support.kernel_fixtures` selects the
interpreter, which Triton must know before kernels are defined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.kernel_fixtures import bounded, device, dtype, loops, poisoned, unchecked_sums
from tests.support.quick_interpreter import quick_interpreter

if TYPE_CHECKING:
    from tests.support.device_steps import MakeSteps

__all__ = ["bounded", "device", "dtype", "loops", "poisoned", "quick_interpreter", "unchecked_sums"]


@pytest.fixture(params=[False, True], ids=["launches", "graph"])
def graphs(request: pytest.FixtureRequest, device: str) -> bool:
    if request.param and device != "cuda":
        pytest.skip("graphs need a GPU")
    return request.param


@pytest.fixture
def fused(device: str, graphs: bool) -> MakeSteps:
    """Return a function that makes steps whose network runs in kernels everywhere."""
    from mlff_triton.kernels.tensornet import operators
    from tests.support.device_steps import maker

    return maker(device, graphs, operators)


@pytest.fixture
def new_steps(device: str, graphs: bool) -> MakeSteps:
    """Return a function that makes steps whose network runs in kernels on a GPU only."""
    from mlff_triton.kernels.tensornet import operators
    from mlff_triton.kernels.tensornet.reference import operators as plain_torch
    from tests.support.device_steps import maker

    return maker(device, graphs, plain_torch if device == "cpu" else operators)
