"""Kernels compiled side by side before they are launched, and what happens if that fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def test_other_processes_compile_all_kernels(cases):
    assert cases["all"]["on disk"] == 3
    assert cases["all"]["own"] == 0


def test_kernels_on_disk_start_no_process(cases):
    assert cases["again"]["forks"] == 0
    assert cases["again"]["on disk"] == 3


@pytest.mark.parametrize(
    "case", ["without forks", "without processes", "old Triton", "bad function"]
)
def test_failures_leave_all_kernels_to_their_launches(case, cases):
    assert cases[case]["on disk"] == 0


@pytest.mark.parametrize("case", ["killed", "stuck", "failing"])
def test_failures_of_processes_keep_what_is_compiled(case, cases):
    assert cases[case]["on disk"] == 2
    assert cases[case]["seconds"] < 30


@pytest.mark.parametrize(
    "case", ["all", "without forks", "killed", "stuck", "old Triton", "bad function"]
)
def test_launches_run_again_afterwards(case, cases):
    assert cases[case]["restored"]


def test_processes_leave_the_garbage_of_their_parent_alone(cases):
    """It may hold CUDA graphs, whose end aborts a process without CUDA."""
    assert cases["collecting"]["collect"] == ["no", "no"]
    assert cases["collecting"]["afterwards"]


def test_other_threads_launch_meanwhile(cases):
    assert cases["other threads"]["skipped"] == 3 * [True] + 3 * [False]


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
    assert gpu["hits"] == [True, True, True]
    assert len(gpu["result"]) == 2
