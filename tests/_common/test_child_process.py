"""Processes that compile: what they find in the place of PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mlff_triton._common import child_process

START = f"""
import sys
sys.path[:] = {sys.path}
from mlff_triton._common.child_process import leave_pytorch_out
leave_pytorch_out({{"hip": None}})
"""


def run(program: str) -> str:
    done = subprocess.run(  # noqa: S603 - the program is ours
        [sys.executable, "-I", "-c", START + program], capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_modules_that_use_pytorch_are_imported():
    program = """
import torch
import torch.utils.checkpoint as checkpoint
from torch import Tensor
from torch.nn import functional

@torch.library.custom_op("a::b", mutates_args=())
def f(x: Tensor | None) -> Tensor: ...

@f.register_fake
def g(x): ...

class Function(torch.autograd.Function): ...
TYPES = {torch.float32: 1, torch.float64: 2}
assert TYPES[torch.float64] == 2
assert torch.version.hip is None
print(list(TYPES.values()), Function.__name__)
"""
    assert run(program) == "[1, 2] Function\n"


@pytest.mark.parametrize("value", ["torch.cuda.is_available()", "torch.version.cuda"])
def test_nothing_is_decided_by_what_is_left_out(value):
    errors = run(f"import torch\nx = 1 if {value} else 2")
    assert "left out of this process" in errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("executable", "possible"),
    [("/usr/bin/python3.12", True), ("C:/python.exe", True), ("/usr/bin/lmp", False), ("", False)],
)
def test_only_python_is_started(monkeypatch, executable, possible):
    monkeypatch.setattr(sys, "executable", executable)
    assert child_process.can_start() is possible
