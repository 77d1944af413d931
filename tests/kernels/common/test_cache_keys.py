"""Keys of kernels: the same in all processes, whatever these have launched or imported before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]


def keys(*arguments: str) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    process = subprocess.run(  # noqa: S603 - the script is ours
        [sys.executable, "-m", "tests.support.cache_keys", *arguments],
        cwd=CHECKOUT,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_processes_without_pytorch_have_the_same_keys_in_any_order():
    found = keys()
    assert len(found) > 300
    assert keys("child", "reversed") == found
