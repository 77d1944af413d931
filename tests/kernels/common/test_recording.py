"""Sequences of loops and of operators that are repeated on the same memory."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from mlff_triton.kernels.common.cpu import compilation
from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.recording import Recording, Repeated
from mlff_triton.kernels.common.cpu.rows import over_rows
from mlff_triton.kernels.common.cpu.threads import in_parallel


@loop
def double_rows(x, out, first, last):
    for i in range(first, last):
        for f in range(x.shape[1]):
            out[i, f] = 2 * x[i, f]


def sequence(x):
    """Return a function that computes by loops, blocks of operators, and operators in themselves.

    Results are overwritten and read by what follows, so that each call has to be repeated in turn.
    """

    def compute():
        out = torch.empty_like(x)
        run(double_rows, len(x), x, out)
        over_rows(lambda first, last: out[first:last].add_(out[first:last].sin()), len(x))
        total = x.new_zeros(x.shape[1]) + out.sum(0)
        total[1:] *= 3
        out.sub_(total)
        return torch.cat([out, total[None], out.T.reshape(1, -1)[:, : x.shape[1]]])

    return compute


@pytest.mark.parametrize("threads", [1, 2])
def test_repeated_results_are_those_of_new_contents(monkeypatch, threads):
    monkeypatch.setattr(compilation, "FEWEST", 100)
    monkeypatch.setattr(compilation, "n_threads", lambda: threads)
    x, repeated = torch.empty(300, 7, dtype=torch.float64), Repeated()
    for seed in range(5):
        x.copy_(torch.from_numpy(np.random.default_rng(seed).normal(size=x.shape)))
        found = repeated.compute(sequence(x), x)
        assert found.equal(sequence(x)())


def test_work_of_threads_is_one_call():
    """Operators in it would be repeated by this thread alone, and some of them twice."""
    x = torch.ones(300, 7)
    recording = Recording()
    with recording.made():
        sequence(x)()
    functions = [call.func for call in recording.calls]
    assert functions.count(double_rows) == functions.count(in_parallel) == 1
    assert not any(str(function).startswith("aten.sin") for function in functions)
    assert recording.is_complete


def test_other_memory_is_not_repeated():
    repeated, memory = Repeated(), [torch.full((4, 3), float(k)) for k in range(3)]
    for k in (0, 1, 0, 0, 0, 2, 2, 2, 1):
        assert repeated.compute(sequence(memory[k]), memory[k]).equal(sequence(memory[k])())


def test_python_may_depend_on_contents():
    """Values that Python has read may lead it to other operators, so nothing is repeated."""
    x, repeated = torch.ones(4), Repeated()
    for k in range(4):
        x.fill_(k)
        found = repeated.compute(lambda: x + 1 if x.sum() > 4 else x - 1, x)
        assert found.equal(x + 1 if k > 1 else x - 1)


def test_errors_end_a_recording():
    x, repeated = torch.ones(4), Repeated()

    def fail():
        raise ValueError("no")

    repeated.compute(lambda: x, x)
    with pytest.raises(ValueError, match="no"):
        repeated.compute(fail, x)
    x.fill_(2)
    for _ in range(3):
        assert repeated.compute(lambda: x * 2, x).equal(x * 2)


def test_recording_does_not_import_the_compiler_of_pytorch():
    code = (
        "import sys, torch\n"
        "from mlff_triton.kernels.common.cpu.recording import Repeated\n"
        "x, repeated = torch.ones(2), Repeated()\n"
        "for _ in range(3): assert repeated.compute(lambda: x + 1, x).tolist() == [2, 2]\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 - our own code
