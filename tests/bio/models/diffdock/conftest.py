"""Fixture of tests that make layers of e3nn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def quick_products() -> Iterator[None]:
    """Let e3nn's products be plain Python code, which takes a fifth of the time to make."""
    import e3nn

    before = e3nn.get_optimization_defaults()
    e3nn.set_optimization_defaults(jit_script_fx=False, optimize_einsums=False)
    yield
    e3nn.set_optimization_defaults(**before)
