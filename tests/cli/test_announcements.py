"""Messages of commands before the first step and during a long one."""

from __future__ import annotations

import re
import time

import pytest

from mlff_triton import Engine
from mlff_triton._common import progress
from mlff_triton.cli import _shared
from mlff_triton.statics import predictions

CPU = ("--device", "cpu")
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
    _, out, _ = run(*COMMANDS[command], "--model", model, *CPU)
    first, second = out.splitlines()[:2]
    assert first == f"read 9 atoms, to compute on cpu: {time_}"
    assert bool(re.fullmatch(r"about \S+ s per step", second)) == (ms is None)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_time_of_a_step_costs_no_evaluation(run, model, monkeypatch, command):
    """It is that of the first one, which the command finds in the calculator.

    Only vibrations need many more.
    """
    calls = []
    evaluate = Engine.evaluate
    monkeypatch.setattr(Engine, "evaluate", lambda *a: calls.append(1) or evaluate(*a))
    arguments = (*COMMANDS[command], "--model", model, *CPU, "--overwrite")
    assert "s per step" not in run(*arguments)[1]
    usual = len(calls)
    monkeypatch.setattr(_shared, "LARGE", 9)
    assert "s per step" in run(*arguments)[1]
    assert len(calls) - usual == usual + (command == "vibrations")


def test_the_time_of_a_step_counts_all_systems(run, model, monkeypatch):
    monkeypatch.setattr(_shared, "LARGE", 9)
    clock = iter(range(100))
    monkeypatch.setattr(_shared, "perf_counter", lambda: next(clock))
    out = run("md", "ethanol.xyz", "--steps", 1, "--replicas", 3, "--model", model, *CPU)[1]
    assert out.splitlines()[1] == "about 3 s per step"


def test_a_small_structure_is_not(run, model):
    assert "read 9 atoms" not in run(*COMMANDS["relax"], "--model", model, *CPU)[1]


def test_a_line_comes_while_structures_are_predicted(run, model, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.2)
    evaluate = predictions.evaluate
    monkeypatch.setattr(predictions, "evaluate", lambda *a: time.sleep(0.6) or evaluate(*a))
    code, out, _ = run("predict", "ethanol.xyz", "--out", "o.xyz", "--model", model)
    assert code == 0
    assert out.splitlines()[0].startswith("0 structures, 0.0 of 0.0 MB (")
