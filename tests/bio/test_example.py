"""The example of protein language models on a CPU, where nothing is accelerated by default."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "06_protein_lm.py"


def test_nothing_is_compared_on_a_cpu(tmp_path):
    pytest.importorskip("transformers", reason="transformers is an optional extra")
    options = ("--sequences", "1", "--repeats", "1", "--device", "cpu", "--precision", "fp16")
    done = subprocess.run(  # noqa: S603 - the example is above
        [sys.executable, EXAMPLE, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "original forward, float32" in done.stdout
    assert "use --backend torch to accelerate it" in done.stdout
    assert "cosine" not in done.stdout
    assert "accelerated " not in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"embeddings.npz", "timing.png"}
