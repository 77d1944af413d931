"""Lines of progress where there is no terminal."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from mlff_triton._common import progress
from mlff_triton._common.progress import ProgressBar
from mlff_triton._common.text import duration


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.2)


def test_a_line_comes_even_while_a_step_takes_long():
    text = io.StringIO()
    with ProgressBar(Console(file=text), "embeddings", 10) as bar:
        time.sleep(0.3)
        bar.show(1, "", "[1] of 10 sequences")
        time.sleep(0.5)
    lines = text.getvalue().splitlines()
    assert lines[0] == "embeddings (0 s)"
    assert set(lines[1:]) <= {"[1] of 10 sequences (0 s)", "[1] of 10 sequences (1 s)"}
    assert 1 <= len(lines[1:]) <= 3
    time.sleep(0.3)
    assert text.getvalue().splitlines() == lines


def test_quick_work_prints_nothing():
    text = io.StringIO()
    with ProgressBar(Console(file=text), "embeddings", 10) as bar:
        for k in range(10):
            bar.show(k, "", f"{k} of 10")
    assert text.getvalue() == ""


def test_terminals_have_a_bar():
    text = io.StringIO()
    with ProgressBar(Console(file=text, force_terminal=True), "embeddings", 10) as bar:
        time.sleep(0.5)
        bar.show(1, "", "a line")
    assert "embeddings" in text.getvalue()
    assert "a line" not in text.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.4, "3 s"), (60, "60 s"), (120, "2 min"), (5999, "100 min"), (9e3, "2.5 h")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
