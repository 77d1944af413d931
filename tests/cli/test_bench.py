"""``mlff-triton bench``: the benchmarks of the checkout, from any directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mlff_triton
from mlff_triton.cli.bench import load_benchmarks
from mlff_triton.errors import InputError

CHECKOUT = Path(mlff_triton.__file__).resolve().parents[1]


def test_benchmarks_come_from_the_checkout_and_not_from_the_working_directory(tmp_path):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("raise RuntimeError('not these')")
    code = """
import sys
from pathlib import Path
from mlff_triton.cli.bench import load_benchmarks
before = list(sys.path)
print(Path(load_benchmarks(Path(sys.argv[1])).__file__).parent)
assert sys.path == before
import benchmarks
print(Path(benchmarks.__file__).parent)
"""
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code, str(CHECKOUT)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [str(CHECKOUT / "benchmarks")] * 2


def test_loaded_benchmarks_are_kept():
    assert load_benchmarks(CHECKOUT) is load_benchmarks(CHECKOUT)


def test_a_folder_without_benchmarks_is_refused(tmp_path):
    with pytest.raises(InputError, match="bench needs a checkout"):
        load_benchmarks(tmp_path)
