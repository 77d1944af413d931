"""Fixture of tests that make layers of e3nn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def quick_products() -> Iterator[None]:
    """Let e3nn's products be Python code, which takes no time to compile."""
    import e3nn

    before = e3nn.get_optimization_defaults()["jit_script_fx"]
    e3nn.set_optimization_defaults(jit_script_fx=False)
    yield
    e3nn.set_optimization_defaults(jit_script_fx=before)
