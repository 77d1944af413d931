"""The operators under test: fused kernels, and loops for CPUs."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import pytest

PLAIN = {"halves": False}


class Family(NamedTuple):
    """A module of all operators, and the device that it runs on.

    Weights of networks of edges may be halves for the fused kernels alone.
    """

    module: ModuleType
    device: str

    def options(self, **given: object) -> dict[str, object]:
        """Return options of a network for these operators."""
        return given if self.module.__name__.endswith("tensornet2.operators") else given | PLAIN


@pytest.fixture
def fused(device: str) -> Family:
    """Return the kernels for GPUs."""
    return Family(import_module("mlff_triton.kernels.tensornet2.operators"), device)


@pytest.fixture(params=["fused", "cpu"])
def family(request: pytest.FixtureRequest, fused: Family) -> Family:
    """Return operators for GPUs, and for CPUs."""
    if request.param == "fused":
        return fused
    return Family(import_module("mlff_triton.kernels.tensornet2.cpu.operators"), "cpu")
