"""Compilation of all kernels, with real launch arguments, for all supported GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlff_triton.testing.launches import TARGETS

CHECKOUT = Path(__file__).parents[2]
HALVES = tuple(TARGETS)[::2], tuple(TARGETS)[1::2]

pytestmark = pytest.mark.timeout(2400)  # two cores with an empty cache need 10 to 20 minutes


@pytest.fixture(scope="module")
def compilations() -> dict[str, tuple[list[list[str]], str]]:
    """Compile in other processes: kernels of each target, and the error that ended the process."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    processes = [
        subprocess.Popen(  # noqa: S603 - the script is ours
            [sys.executable, "-m", "tests.support.launch_cases", *targets],
            cwd=CHECKOUT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for targets in HALVES
    ]
    results = {}
    for process, targets in zip(processes, HALVES, strict=True):
        out, err = process.communicate()
        rows = [json.loads(line) for line in out.splitlines()]
        crash = err[-2000:] if process.returncode else ""
        results |= {t: ([row for row in rows if row[0] == t], crash) for t in targets}
    return results


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(target, compilations):
    rows, crash = compilations[target]
    failures = [f"{case}, {kernel}: {error}" for _, case, kernel, error in rows if error]
    assert not crash, f"after {rows[-1:]}: {crash}"
    assert rows
    assert not failures, "\n".join(failures)
