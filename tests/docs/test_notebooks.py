"""Notebooks run from top to bottom, and are committed without outputs."""

from __future__ import annotations

import json
import re

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
STEPS = re.compile(r"(?<=dynamics\.run\()\d+(?=\))")


def code_cells(path):
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    names = {"__name__": "__main__"}
    with mpl.rc_context({"backend": "Agg"}):
        for number, cell in enumerate(code_cells(path)):
            source = STEPS.sub("60", "".join(cell["source"]))
            exec(compile(source, f"{path.name}, cell {number}", "exec"), names)  # noqa: S102
        plt.close("all")
    assert len(shown) == 2
    (change,) = re.findall(r"changed by at most ([\d.]+) meV", capsys.readouterr().out)
    assert float(change) < 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path):
    for cell in code_cells(path):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
