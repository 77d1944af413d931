"""Triton's work before its first kernel."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from mlff_triton._common import triton_start


@pytest.fixture
def fake_triton(monkeypatch, tmp_path):
    """A package like Triton, whose ``triton_key`` counts its calls."""
    for name in ("runtime/cache.py", "compiler/compiler.py", "_C/libtriton.so"):
        (tmp_path / "triton" / name).parent.mkdir(parents=True)
        (tmp_path / "triton" / name).write_text("first")
    monkeypatch.setenv("MLFF_TRITON_CACHE", str(tmp_path / "cache"))

    def make(error=None):
        def triton_key():
            module.calls += 1
            if error is not None:
                raise error
            return (tmp_path / "triton/_C/libtriton.so").read_text()

        file = str(tmp_path / "triton/runtime/cache.py")
        module = SimpleNamespace(triton_key=triton_key, __file__=file, calls=0)
        return module

    return make


@pytest.mark.parametrize("error", [None, RuntimeError("no such file")])
def test_triton_is_imported_and_hashed_once(monkeypatch, fake_triton, error):
    module = fake_triton(error)
    monkeypatch.setitem(sys.modules, "first_part", module)
    monkeypatch.setattr(triton_start, "PARTS", ("first_part", "json"))
    triton_start.start_triton.cache_clear()
    try:
        thread = triton_start.start_triton()
        assert triton_start.start_triton() is thread
        thread.join(10)
        assert module.calls == 1
    finally:
        triton_start.start_triton.cache_clear()


def test_the_key_is_kept_until_a_file_changes(fake_triton, tmp_path):
    counts = []
    for content in ("first", "first", "second"):
        library = tmp_path / "triton/_C/libtriton.so"
        if library.read_text() != content:
            library.write_text(content)
        module = fake_triton()
        triton_start.keep_key(module)
        assert module.triton_key() == content
        counts.append(module.calls)
    assert counts == [1, 0, 1]


def test_the_key_is_that_of_triton(monkeypatch, tmp_path):
    module = pytest.importorskip("triton.runtime.cache")
    monkeypatch.setenv("MLFF_TRITON_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "triton_key", module.triton_key)  # put back afterwards
    expected = module.triton_key()
    for _ in ("computed", "read"):
        triton_start.keep_key(module)
        assert module.triton_key() == expected


def test_parts_of_triton_exist():
    first, *others = triton_start.PARTS
    module = pytest.importorskip(first)
    assert callable(module.triton_key)
    for name in others:
        pytest.importorskip(name)
