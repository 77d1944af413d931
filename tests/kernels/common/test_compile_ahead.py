"""Kernels compiled side by side before they are launched, and what happens if that fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mlff_triton.kernels.common import compilation
from tests.support.processes import is_alive

CHECKOUT = Path(__file__).parents[3]


def results(*arguments: str) -> dict[str, dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    process = subprocess.run(  # noqa: S603 - the script is ours
        [sys.executable, "-m", "tests.support.compile_ahead", *arguments],
        cwd=CHECKOUT,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert not process.stderr
    return json.loads(process.stdout)


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    return results()


def test_threads_compile_all_kernels(cases):
    assert cases["all"]["on disk"] == 3
    assert cases["all"]["ahead"] == [False] * 3
    assert not cases["all"]["at launch"]
    assert not cases["all"]["warnings"]


def test_launches_find_compiled_kernels_in_memory(cases):
    assert cases["launched"]["ahead"] == [False] * 3
    assert not cases["launched"]["at launch"]
    assert cases["launched"]["launches"] == {"MainThread": 3}


def test_kernels_are_compiled_once(cases):
    assert cases["again"]["first"]["ahead"] == [False] * 3
    assert cases["again"]["other process"]["ahead"] == [True] * 3
    assert cases["nested"]["ahead"] == [False] * 3
    assert not cases["nested"]["launches"]
    assert not cases["nested"]["warnings"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("without threads", "RuntimeError: can't start new thread"),
        ("without launchers", "RuntimeError: Failed to find C compiler."),
        ("failing", "ValueError: invalid literal"),
        ("old Triton", "ImportError: cannot import name 'AsyncCompileMode'"),
        ("bad function", "RuntimeError: out of memory"),
    ],
)
def test_failures_are_reported_once(case, reason, cases):
    (text,) = cases[case]["warnings"]
    assert text.startswith("kernels compile one after another when they are launched: " + reason)
    assert "\n" not in text
    assert cases[case]["restored"]


@pytest.mark.parametrize(
    ("case", "count"),
    [
        ("without threads", 0),
        ("without launchers", 3),
        ("failing", 2),
        ("old Triton", 0),
        ("bad function", 0),
    ],
)
def test_failures_keep_what_is_compiled(case, count, cases):
    assert cases[case]["on disk"] == count


def test_a_kernel_is_compiled_again_if_python_fails():
    failures = [SystemError("AST constructor recursion depth mismatch")]

    def compiler():
        if failures:
            raise failures.pop()
        return "kernel"

    assert compilation._compiled(compiler) == "kernel"


def test_an_interrupt_leaves_launches_as_they_were(cases):
    assert cases["interrupted"]["launches"] == {"MainThread": 3}
    assert cases["interrupted"]["restored"]
    assert not cases["interrupted"]["warnings"]


@pytest.mark.parametrize("state", ["loaded", "new"])
def test_other_threads_launch_meanwhile(state, cases):
    assert cases["other threads"][state]["launches"] == {"other 0": 3, "other 1": 3}
    assert cases["other threads"][state]["restored"]


def test_threads_lose_no_launch(cases):
    """Six threads compile ahead and launch three kernels, twenty times each."""
    assert cases["many threads"]["total"] == 6 * 20 * 3
    assert cases["many threads"]["on disk"] == 3
    assert cases["many threads"]["restored"]
    assert not cases["many threads"]["warnings"]


def test_launches_find_what_other_processes_compile(cases):
    """Their keys are those of this process, which compiles nothing."""
    first = cases["elsewhere"]["first"]
    assert first["started"] == 1
    assert first["on disk"] == 3
    assert first["ahead"] == [True] * 3
    assert not first["at launch"]
    assert first["launches"] == {"MainThread": 3}
    assert not first["warnings"]


def test_other_processes_compile_for_amd(cases):
    assert cases["on AMD"]["ahead"] == [True] * 3
    assert not cases["on AMD"]["warnings"]


def test_processes_start_early_the_first_time(cases):
    assert cases["early"]["first"]["started"] == 1
    assert cases["early"]["first"]["ahead"] == [True] * 3


@pytest.mark.parametrize("case", ["elsewhere", "early"])
def test_kernels_on_disk_start_no_processes(case, cases):
    assert cases[case]["other process"]["started"] == 0
    assert cases[case]["other process"]["on disk"] == 3


def test_a_few_kernels_start_no_processes(cases):
    assert cases["all"]["started"] == 0


@pytest.mark.parametrize(
    ("case", "started"),
    [
        ("killed", 1),
        ("never ready", 1),
        ("never done", 1),
        ("foreign", 0),
        ("no sockets", 1),
        ("one core", 0),
    ],
)
def test_threads_compile_what_other_processes_do_not(case, started, cases):
    assert cases[case]["started"] == started
    assert cases[case]["on disk"] == 1
    assert cases[case]["ahead"] == [False]
    assert not cases[case]["warnings"]
    assert cases[case]["seconds"] < 20


@pytest.mark.parametrize("case", ["full disk", "read-only"])
def test_a_folder_that_cannot_be_written_is_reported_once(case, cases):
    (text,) = cases[case]["warnings"]
    assert "OSError" in text or "FileNotFoundError" in text
    assert cases[case]["on disk"] == 0
    assert cases[case]["restored"]


def test_no_processes_are_left(cases):
    results = [*cases.values(), cases["elsewhere"]["first"], cases["early"]["first"]]
    assert not any(result.get("left") for result in results)
    assert cases["unused"]["started"] == 1


BEGIN = """
import sys
from mlff_triton.kernels.common import compilers
from mlff_triton.kernels.common import compilation
from tests.support.processes import children
compilers.n_cores = lambda: 2
compilers.start_early()
for compiler in compilers._early[0]._all:
    compilers.receive(compiler._pipe)  # that it is ready
(process,) = children()
print(process, *children(process), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ending", ["exit", "kill"])
def test_processes_end_with_this_one(ending, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["MLFF_TRITON_CACHE"] = str(tmp_path)
    with subprocess.Popen(  # noqa: S603 - the program is ours
        [sys.executable, "-W", "error", "-c", BEGIN],
        cwd=CHECKOUT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        processes = [int(number) for number in process.stdout.readline().split()]
        assert len(processes) == 3
        assert all(map(is_alive, processes))
        if ending == "kill":
            process.kill()
        _, errors = process.communicate()
        assert not errors
    end = time.monotonic() + 5
    while any(map(is_alive, processes)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(is_alive, processes))


def test_a_terminal_shows_one_line_which_is_erased(cases):
    *texts, blank, end = cases["terminal"]["written"].split("\r")[1:]
    counts = [int(re.fullmatch(r"compiling kernels for this GPU: (\d) of 3", t)[1]) for t in texts]
    assert counts == sorted(set(counts))
    assert counts[-1] == 3
    assert not blank.strip()
    assert not end
    assert "\n" not in cases["terminal"]["written"]


@pytest.mark.gpu
def test_launches_find_their_kernels():
    gpu = results("gpu")["gpu"]
    assert gpu["on disk"] == 3
    assert not gpu["hits"]  # they are in memory
    assert len(gpu["result"]) == 2


@pytest.mark.gpu
def test_other_processes_compile_first_forces():
    gpu = results("forces")["forces"]
    assert gpu["hits"] == [True] * gpu["on disk"]
    assert gpu["on disk"] > 20
    assert gpu["left"] == 0
