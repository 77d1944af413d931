"""Triton's work before its first kernel."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from mlff_triton._common import triton_start


@pytest.mark.parametrize("error", [None, RuntimeError("no such file")])
def test_triton_is_imported_and_hashed_once(monkeypatch, error):
    calls = []

    def triton_key():
        calls.append(1)
        if error is not None:
            raise error

    monkeypatch.setitem(sys.modules, "first_part", SimpleNamespace(triton_key=triton_key))
    monkeypatch.setattr(triton_start, "PARTS", ("first_part", "json"))
    triton_start.start_triton.cache_clear()
    try:
        thread = triton_start.start_triton()
        assert triton_start.start_triton() is thread
        thread.join(10)
        assert calls == [1]
    finally:
        triton_start.start_triton.cache_clear()


def test_parts_of_triton_exist():
    cache = pytest.importorskip("triton.runtime.cache")
    assert callable(cache.triton_key)
