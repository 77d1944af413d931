"""Notebooks run from top to bottom, and are committed with their pictures."""

from __future__ import annotations

import json
import re
import shutil

import matplotlib as mpl
import pytest
import torch
from matplotlib import pyplot as plt

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
EPOCHS = re.compile(r"(?<=^epochs = )\d+", re.MULTILINE)
STEPS = re.compile(r"(?<=dynamics\.run\()\d+(?=\))|(?<=^steps = )\d+", re.MULTILINE)
NEEDED = {"biology": ("transformers", "h5py", "Bio")}
LARGEST = 300_000  # bytes


def code_cells(path):
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def numbers(pattern, text):
    return [float(number) for number in re.findall(pattern, text)]


def check_first_simulation(text):
    (change,) = numbers(r"changed by at most ([\d.]+) meV", text)
    assert change < 5


def check_biology(text):
    (difference,) = numbers(r"largest difference: (\S+),", text)
    (cosine,) = numbers(r"cosine similarity: (\S+)", text)
    (error,) = numbers(r"off the model by (\S+)", text)
    assert max(difference, error) < 1e-5
    assert cosine > 0.9999999
    assert re.search(r"^True$", text, re.MULTILINE)  # restored to the bit
    assert "EsmEncoder" in text or "EsmModel" in text  # the report
    assert "score 286" in text


def check_replicas(text):
    assert text.count("exchanges accepted") == 3
    assert len(numbers(r"K: (\d+)% of", text)) == 4


def check_training(text):
    (before,) = numbers(r"shipped model are off by ([\d.]+) eV", text)
    (after,) = numbers(r"forces are off by ([\d.]+) eV", text)
    (change,) = numbers(r"changed by at most ([\d.]+) meV", text)
    assert after < before / 3
    assert change < 5
    cool, hot = numbers(r"K: above the usual error in (\d+)%", text)
    assert cool <= hot


CHECKS = {
    "first_simulation": check_first_simulation,
    "biology": check_biology,
    "replicas": check_replicas,
    "training": check_training,
}


def test_every_notebook_is_checked():
    assert {path.stem for path in NOTEBOOKS} == set(CHECKS)


@pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0")  # of tokenizers
@pytest.mark.skipif(torch.cuda.is_available(), reason="notebooks are run on the CPU")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch, capsys):
    for module in NEEDED.get(path.stem, ()):
        pytest.importorskip(module)
    for folder in ("sequences", "structures"):
        shutil.copytree(ROOT / "examples" / folder, tmp_path / folder)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    names = {"__name__": "__main__"}
    with mpl.rc_context({"backend": "Agg"}):
        for number, cell in enumerate(code_cells(path)):
            source = EPOCHS.sub("1", STEPS.sub("60", "".join(cell["source"])))
            exec(compile(source, f"{path.name}, cell {number}", "exec"), names)  # noqa: S102
        plt.close("all")
    assert len(shown) >= 2
    CHECKS[path.stem](capsys.readouterr().out)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_with_its_pictures(path):
    """As ``make notebooks`` leaves it: executed in order, without warnings or errors."""
    assert path.stat().st_size < LARGEST
    printed = ""
    for number, cell in enumerate(code_cells(path), start=1):
        assert cell["execution_count"] == number
        streams = [output for output in cell["outputs"] if output["output_type"] == "stream"]
        pictures = [output for output in cell["outputs"] if "image/png" in output.get("data", {})]
        assert all(output["output_type"] != "error" for output in cell["outputs"])
        assert {stream["name"] for stream in streams} <= {"stdout"}
        assert len(pictures) == "".join(cell["source"]).count("plt.show()")
        printed += "".join(text for stream in streams for text in stream["text"])
    CHECKS[path.stem](printed)
