"""``mlff-triton bench``: the benchmarks of the checkout, from any directory."""

from __future__ import annotations

import importlib
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


def test_a_cpu_skips_the_operators_without_a_failure(run, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    code, out, err = run("bench", "ops", "--device", "cpu", "--out", "results")
    assert (code, out) == (0, "")
    assert err == "ops: skipped, Triton kernels need a GPU, and the device is cpu\n"


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_a_device_that_is_absent_takes_one_line(run, device):
    code, out, err = run("bench", "ops", "--device", device, "--out", "results")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert device in err


def test_failures_are_counted_in_the_exit_code(run, monkeypatch):
    command = importlib.import_module(f"{load_benchmarks(CHECKOUT).__name__}.__main__")

    def fail(lab, *_):
        lab.complain("md one", ValueError("wrong forces"))
        lab.complain("md two", ValueError("wrong forces"))

    monkeypatch.setattr(command, "run_md", fail)
    code, _, err = run("bench", "md", "--device", "cpu", "--out", "results")
    assert code == 1
    assert err.splitlines()[-1] == "mlff-triton: 2 measurements failed, for the reasons above"
    assert "md one: ValueError: wrong forces" in err
