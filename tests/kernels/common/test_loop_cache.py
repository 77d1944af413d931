"""Machine code of loops on disk: never stale, never trusted if damaged, never in the way."""

from __future__ import annotations

import importlib
import sys
from collections import deque

import numpy as np
import pytest

pytest.importorskip("numba")

import numba
from numba import types

from mlff_triton._common import cache, notice
from mlff_triton.kernels.common.cpu import compilation, compilers, loop_cache, loop_folder
from mlff_triton.kernels.common.cpu.compilation import compile_ahead, run

CONSTANTS = "FACTOR = 2.0\n"
HELPER = """
from mlff_triton.kernels.common.cpu.compilation import inlined

@inlined
def helped(x):
    return x + 1.0
"""
LOOPS = """
from changing_helper import helped
from changing_constants import FACTOR
from mlff_triton.kernels.common.cpu.compilation import loop

@loop
def fill(out, first, last):
    for i in range(first, last):
        out[i] = helped(FACTOR)
"""
NAMES = ("changing_loops", "changing_helper", "changing_constants")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the cache folder of a test, in which there is nothing."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache" / loop_folder.KIND


@pytest.fixture
def load(tmp_path, monkeypatch, folder):  # noqa: ARG001
    """Return a function that imports the loop from its sources, as a new process does."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(loops=LOOPS, helper=HELPER, constants=CONSTANTS):
        for name, source in zip(NAMES, (loops, helper, constants), strict=True):
            (tmp_path / f"{name}.py").write_text(source)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("changing_loops").fill

    yield load
    for name in NAMES:
        sys.modules.pop(name, None)


def result(loop) -> float:
    out = np.zeros(3)
    run(loop, 3, out)
    assert (out == out[0]).all()
    return float(out[0])


def hits(loop) -> int:
    return sum(loop.stats.cache_hits.values())


def test_other_processes_find_the_code(load, folder):
    first, second = load(), load()
    assert [result(first), result(second)] == [3, 3]
    assert [hits(first), hits(second)] == [0, 1]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"helper": HELPER.replace("+ 1", "+ 5")}, 7),
        ({"helper": HELPER.replace("x + 1", "x * x + 1")}, 5),
        ({"constants": "FACTOR = 3.0\n"}, 4),
        ({"loops": LOOPS.replace("(FACTOR)", "(-FACTOR)")}, -1),
    ],
)
def test_changes_in_any_file_are_noticed(load, changed, expected):
    assert result(load()) == 3
    assert result(load(**changed)) == expected
    again = load()
    assert result(again) == 3
    assert hits(again) == 1


def test_comments_and_line_numbers_change_nothing(load):
    result(load())
    same = load("# new\n\n" + LOOPS, "# new\n" + HELPER)
    assert result(same) == 3
    assert hits(same) == 1


def test_options_of_the_compiler_count(load):
    names = {loop_cache.fingerprint(load(LOOPS.replace("loop", n))) for n in ("loop", "exact_loop")}
    assert len(names) == 2


@pytest.mark.parametrize("content", [b"", b"garbage", loop_cache.dumps((1, 2, 3))])
def test_files_with_other_content_are_replaced(load, folder, content):
    result(load())
    (file,) = folder.iterdir()
    cache.write(loop_folder.KIND, file.name, content)
    repaired, third = load(), load()
    assert [result(repaired), hits(repaired)] == [3, 0]
    assert [result(third), hits(third)] == [3, 1]


def test_damaged_files_are_replaced(load, folder):
    result(load())
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    assert result(load()) == 3
    third = load()
    assert [result(third), hits(third)] == [3, 1]


def test_loops_run_where_nothing_can_be_written(load, folder):
    folder.parent.write_text("a file where the folder should be")
    assert result(load()) == 3
    again = load()
    compile_ahead(lambda: run(again, 3, np.zeros(3)))
    assert result(again) == 3


def test_the_folder_of_numba_is_respected(load, tmp_path, monkeypatch, folder):
    given = tmp_path / "given"
    monkeypatch.setenv(loop_folder.NUMBA_FOLDER, str(given))
    result(load())
    assert len(list(folder.iterdir())) == 1  # the package's own folder comes first
    monkeypatch.delenv(cache.FOLDER)
    result(load())
    assert len(list(given.glob("mlff_triton/loops/*"))) == 1


def test_loops_of_users_keep_their_cache(load):
    load()
    own = numba.njit(cache=True)(result)
    assert type(own._cache) is numba.core.caching.FunctionCache


def test_loops_are_collected_without_running(load):
    loop, out = load(), np.zeros(3)
    compile_ahead(lambda: run(loop, 3, out))
    assert (out == 0).all()
    assert len(loop.overloads) == 1
    run(loop, 3, out)
    assert (out == 3).all()
    assert len(loop.overloads) == 1


def test_a_launch_that_fails_changes_nothing(load):
    loop, out = load(), np.zeros(3)

    def launch():
        run(loop, 3, out)
        raise ZeroDivisionError

    compile_ahead(launch)
    assert len(loop.overloads) == 1
    assert result(loop) == 3


def test_another_process_compiles(load):
    array = types.Array(types.float64, 1, "C")
    tasks = [compilers.Task(load(), (array, types.int64, types.int64)) for _ in range(1)]
    child = compilers.Child()
    try:
        child.serve(deque(tasks))
    finally:
        child.stop()
    assert tasks[0].is_stored
    assert result(tasks[0].loop) == 3
    assert hits(tasks[0].loop) == 1


def test_loops_that_other_processes_have_compiled_meanwhile_are_loaded(load):
    array = types.Array(types.float64, 1, "C")
    loops = load(), load()  # as in two processes
    compilers.compile_all([compilers.Task(f, (array, types.int64, types.int64)) for f in loops], 1)
    assert sorted(map(hits, loops)) == [0, 1]
    assert [result(f) for f in loops] == [3, 3]


@pytest.mark.parametrize("name", ["", "/nowhere/lmp", "/nowhere/python3"])
def test_programs_without_an_interpreter_compile_by_themselves(load, monkeypatch, name):
    monkeypatch.setattr(sys, "executable", name)
    monkeypatch.setattr(compilers, "LOOPS_PER_PROCESS", 0.5)
    monkeypatch.setattr(compilation, "n_threads", lambda: 2)
    assert compilers._start(1) == []
    loop = load()
    compile_ahead(lambda: run(loop, 3, np.zeros(3)))
    assert [hits(loop), result(loop)] == [0, 3]


def test_processes_that_fail_leave_nothing_undone(load, monkeypatch):
    monkeypatch.setattr(compilers, "START", "raise SystemExit")
    child, loop = compilers.Child(), load()
    array = types.Array(types.float64, 1, "C")
    queue = deque([compilers.Task(loop, (array, types.int64, types.int64))])
    child.serve(queue)
    child.stop()
    assert len(queue) == 1
    assert result(loop) == 3


def test_a_line_says_that_loops_are_compiled(load, monkeypatch, caplog):
    monkeypatch.setattr(notice, "QUIET", 0.0)
    caplog.set_level("INFO", "mlff_triton")
    loop = load()
    for _ in range(2):
        compile_ahead(lambda: run(loop, 3, np.zeros(3)))
    compile_ahead(lambda: run(load(), 3, np.zeros(3)))  # from the cache
    assert caplog.messages == ["compiling loops for this processor: 0 of 1"]
