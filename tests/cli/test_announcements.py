"""Messages of commands before the first step and during a long one."""

from __future__ import annotations

import time

import pytest

from mlff_triton import Engine
from mlff_triton._common import progress
from mlff_triton.cli import _shared
from mlff_triton.statics import predictions

COMMANDS = {
    "md": ("md", "ethanol.xyz", "--steps", 1),
    "relax": ("relax", "ethanol.xyz", "--steps", 0),
    "vibrations": ("vibrations", "ethanol.xyz"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("ms", "time_"), [(None, "the first step may take a while"), (2345, "about 2.3 s per step")]
)
def test_a_large_structure_is_announced(run, model, monkeypatch, command, ms, time_):
    monkeypatch.setattr(_shared, "LARGE", 9)
    monkeypatch.setattr(Engine, "expected_ms", lambda *_: ms)
    _, out, _ = run(*COMMANDS[command], "--model", model, "--device", "cpu")
    assert out.splitlines()[0] == f"read 9 atoms, to compute on cpu: {time_}"


def test_a_small_structure_is_not(run, model):
    assert "read 9 atoms" not in run(*COMMANDS["relax"], "--model", model, "--device", "cpu")[1]


def test_a_line_comes_while_structures_are_predicted(run, model, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.2)
    evaluate = predictions.evaluate
    monkeypatch.setattr(predictions, "evaluate", lambda *a: time.sleep(0.6) or evaluate(*a))
    code, out, _ = run("predict", "ethanol.xyz", "--out", "o.xyz", "--model", model)
    assert code == 0
    assert out.splitlines()[0].startswith("0 structures, 0.0 of 0.0 MB (")
