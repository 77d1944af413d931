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
