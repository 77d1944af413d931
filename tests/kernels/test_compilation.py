"""Compilation of all kernels, with real launch arguments, for all supported GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlff_triton.testing.launches import TARGETS

CHECKOUT = Path(__file__).parents[2]
COMMON_TARGETS = ("sm_90", "gfx942")  # one per compiler
ALL = [tuple(TARGETS)[::2], tuple(TARGETS)[1::2]]

pytestmark = pytest.mark.timeout(2400)  # two cores with an empty cache need 3 or 10 minutes

Compilations = dict[str, tuple[list[list[str]], str]]


def compilations(arguments: Sequence[tuple[str, ...]]) -> Compilations:
    """Compile in other processes: kernels of each target, and the error that ended the process."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_DISABLE_LINE_INFO"] = "1"  # it takes a quarter of the time
    processes = [
        subprocess.Popen(  # noqa: S603 - the script is ours
            [sys.executable, "-m", "tests.support.launch_cases", *each],
            cwd=CHECKOUT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for each in arguments
    ]
    results = {}
    for process, each in zip(processes, arguments, strict=True):
        out, err = process.communicate()
        rows = [json.loads(line) for line in out.splitlines()]
        crash = err[-2000:] if process.returncode else ""
        results |= {t: ([row for row in rows if row[0] == t], crash) for t in each}
    return results


@pytest.fixture(scope="module")
def thorough() -> Compilations:
    return compilations(ALL)


def check(rows: list[list[str]], crash: str) -> None:
    """Assert that there are kernels, and that all compile."""
    failures = [f"{case}, {kernel}: {error}" for _, case, kernel, error in rows if error]
    assert not crash, f"after {rows[-1:]}: {crash}"
    assert rows
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("target", COMMON_TARGETS)
def test_common_kernels_compile(target):
    check(*compilations([("--common", target)])[target])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(target, thorough):
    check(*thorough[target])
