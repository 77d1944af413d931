"""Installations in which Numba is missing or broken: the exact module serves, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mlff_triton.engine import dispatch, host_operators
from mlff_triton.engine.dispatch import choose
from mlff_triton.errors import BackendError
from tests.support.tensornets import model_of

CPU = torch.device("cpu")
BROKEN = """
from mlff_triton import Engine
from mlff_triton.errors import BackendError

engine = Engine("default", "cpu")
forces = engine.compute([8, 1, 1], [[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]]).forces
try:
    Engine("default", "cpu", backend="cpu")
except BackendError as error:
    print(engine.backend, tuple(forces.shape), error)
"""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # set by tests of kernels
    monkeypatch.setattr(host_operators, "_failures", {})
    monkeypatch.setattr(dispatch, "has_loops", lambda: True)


@pytest.mark.parametrize(
    "error",
    [
        ImportError("Numba needs NumPy 2.4 or less. Got NumPy 2.5.\nmore"),
        SystemError("initialization of _internal failed"),
        OSError("Could not find/load shared object file"),
        AttributeError("_ARRAY_API not found"),
    ],
)
def test_the_exact_module_serves_if_numba_is_broken(monkeypatch, error):
    attempts = []

    def load(backend):
        attempts.append(backend)
        raise error

    monkeypatch.setattr(host_operators, "load", load)
    model = model_of()
    for _ in range(3):
        assert choose("auto", [model], CPU, torch.float32) == "exact"
    reason = f"its loops need Numba, which cannot be imported: {str(error).splitlines()[0]}"
    with pytest.raises(BackendError) as refused:
        choose("cpu", [model], CPU, torch.float32)
    assert str(refused.value) == f"backend='cpu': {reason}; use backend='exact'"
    assert f"no: {reason}" in dispatch.explain(model)
    assert attempts == ["cpu"]


def test_the_exact_module_serves_if_the_compiler_is_off(monkeypatch):
    compilation = pytest.importorskip("mlff_triton.kernels.common.cpu.compilation")
    monkeypatch.setattr(compilation, "is_off", lambda: True)
    assert choose("auto", [model_of()], CPU, torch.float32) == "exact"
    assert host_operators.cpu_obstacle(CPU, torch.float32) == (
        "Numba's compiler is off: unset NUMBA_DISABLE_JIT"
    )


def test_other_backends_do_not_import_numba(monkeypatch):
    monkeypatch.setattr(host_operators, "load", lambda _: pytest.fail("imported"))
    for backend in ("exact", "torch"):
        assert choose(backend, [model_of()], CPU, torch.float32) == backend


def test_a_package_that_fails_to_import_is_no_error(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.4 or less')\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", "-c", BROKEN],
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == (
        "exact (3, 3) backend='cpu': its loops need Numba, which cannot be imported: Numba needs "
        "NumPy 2.4 or less; use backend='exact'\n"
    )
