"""Fixtures of tests that run an operator of TensorNet in each of its implementations."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

PACKAGE = "mlff_triton.kernels.tensornet"


@pytest.fixture(params=["kernels", "loops"])
def operator(request: pytest.FixtureRequest) -> ModuleType:
    """Return the operators of a test module: Triton kernels, loops for CPUs or the reference."""
    if request.param == "loops" and request.node.get_closest_marker("gpu"):
        pytest.skip("sizes of GPUs are for kernels")
    stem = request.module.__name__.rpartition("test_")[2]
    modules = {"kernels": stem, "loops": "cpu.operators", "reference": "reference.operators"}
    return import_module(f"{PACKAGE}.{modules[request.param]}")


@pytest.fixture
def device(request: pytest.FixtureRequest, device: str) -> str:
    """Return the device of all kernels, or that of the loops in tests of these."""
    if "operator" in request.fixturenames and "cpu" in request.getfixturevalue("operator").__name__:
        return "cpu"
    return device
