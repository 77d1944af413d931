"""Triton's work before its first kernel."""

from __future__ import annotations

import sys
from threading import Event
from types import SimpleNamespace

import pytest

from mlff_triton._common import cache, triton_start


@pytest.fixture
def fake_triton(monkeypatch, tmp_path):
    """A package like Triton, whose ``triton_key`` counts its calls."""
    for name in ("runtime/cache.py", "compiler/compiler.py", "_C/libtriton.so"):
        (tmp_path / "triton" / name).parent.mkdir(parents=True)
        (tmp_path / "triton" / name).write_text("first")
    monkeypatch.setenv("MLFF_TRITON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(triton_start, "LATER", 0)

    def make(error=None):
        def triton_key():
            module.calls += 1
            module.meanwhile()
            if error is not None:
                raise error
            return (tmp_path / "triton/_C/libtriton.so").read_text()

        file = str(tmp_path / "triton/runtime/cache.py")
        module = SimpleNamespace(triton_key=triton_key, __file__=file, calls=0)
        module.meanwhile = lambda: None
        return module

    return make


@pytest.mark.parametrize("error", [None, RuntimeError("no such file")])
def test_triton_is_imported_and_hashed_once(monkeypatch, fake_triton, error):
    module = fake_triton(error)
    monkeypatch.setitem(sys.modules, "first_part", module)
    monkeypatch.setattr(triton_start, "PARTS", ("first_part", "json"))
    triton_start.start_triton.cache_clear()
    try:
        is_ready = triton_start.start_triton()
        assert triton_start.start_triton() is is_ready
        assert is_ready.wait(10)
        assert module.calls == 1
    finally:
        triton_start.start_triton.cache_clear()


@pytest.mark.parametrize("error", [None, RuntimeError("0 active drivers")])
def test_the_driver_is_prepared(monkeypatch, fake_triton, error):
    prepared, module, is_ready = [], fake_triton(), Event()

    class Driver:
        @property
        def active(self):
            prepared.append(not is_ready.is_set())
            if error is not None:
                raise error

    monkeypatch.setitem(sys.modules, "first_part", module)
    monkeypatch.setitem(sys.modules, "second_part", SimpleNamespace(driver=Driver()))
    monkeypatch.setattr(triton_start, "PARTS", ("first_part", "second_part"))
    triton_start._start(is_ready)
    assert prepared == [True]
    assert module.calls == 1


def test_the_key_is_kept_until_a_file_changes(fake_triton, tmp_path):
    lent = []
    for content in ("first", "first", "second"):
        library = tmp_path / "triton/_C/libtriton.so"
        if library.read_text() != content:
            library.write_text(content)
        module = fake_triton()
        own, is_ready = module.triton_key, Event()
        module.meanwhile = lambda m=module, e=is_ready: lent.append(e.is_set() and m.triton_key())
        triton_start.find_key(module, is_ready)
        assert module.triton_key is own
        assert module.calls == 1
    assert lent == [False, "first", False]


def test_a_wrong_key_is_used_no_longer_than_a_moment(fake_triton):
    module = fake_triton()
    triton_start.find_key(module, Event())
    (kept,) = (cache.folder() / "triton").iterdir()
    cache.write("triton", kept.name, b"wrong")
    triton_start.find_key(module, Event())
    assert module.triton_key() == "first"
    assert cache.read("triton", kept.name) == b"first"


def test_a_kept_key_is_lent_while_the_first_step_runs(monkeypatch, fake_triton):
    triton_start.find_key(fake_triton(), Event())
    waits = []
    module, is_ready = fake_triton(), Event()
    monkeypatch.setattr(triton_start, "LATER", 10)
    monkeypatch.setattr(
        triton_start.time,
        "sleep",
        lambda seconds: waits.append((seconds, is_ready.is_set(), module.triton_key())),
    )
    triton_start.find_key(module, is_ready)
    assert waits == [(10, True, "first")]
    assert module.calls == 1


def test_an_error_leaves_tritons_own_function(fake_triton):
    triton_start.find_key(fake_triton(), Event())
    module = fake_triton(RuntimeError("no such file"))
    own = module.triton_key
    with pytest.raises(RuntimeError, match="no such file"):
        triton_start.find_key(module, Event())
    assert module.triton_key is own


def test_a_function_that_somebody_else_puts_there_stays(monkeypatch, fake_triton):
    triton_start.find_key(fake_triton(), Event())
    module = fake_triton()
    theirs = lambda: "theirs"  # noqa: E731
    monkeypatch.setattr(triton_start.time, "sleep", lambda _: setattr(module, "triton_key", theirs))
    triton_start.find_key(module, Event())
    assert module.triton_key is theirs


def test_the_key_is_that_of_triton(monkeypatch, tmp_path):
    module = pytest.importorskip("triton.runtime.cache")
    monkeypatch.setenv("MLFF_TRITON_CACHE", str(tmp_path))
    own, expected = module.triton_key, module.triton_key()
    triton_start.find_key(module, Event())
    (kept,) = (tmp_path / "triton").iterdir()
    assert cache.read("triton", kept.name) == expected.encode()
    assert module.triton_key is own


def test_parts_of_triton_exist():
    first, *others = triton_start.PARTS
    module = pytest.importorskip(first)
    assert callable(module.triton_key)
    for name in others:
        pytest.importorskip(name)
