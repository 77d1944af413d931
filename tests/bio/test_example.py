"""The example of protein language models on a CPU, where nothing is accelerated by default.

`test_examples` runs it in a process of its own.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "06_protein_lm.py"


def test_nothing_is_compared_on_a_cpu(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="transformers is an optional extra")
    options = ("--sequences", "1", "--repeats", "1", "--device", "cpu", "--precision", "fp16")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *options])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    out = capsys.readouterr().out
    assert "original forward, float32" in out
    assert "use --backend torch to accelerate it" in out
    assert "cosine" not in out
    assert "accelerated " not in out
    assert {path.name for path in tmp_path.iterdir()} == {"embeddings.npz", "timing.png"}
