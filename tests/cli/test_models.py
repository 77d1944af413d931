"""``mlff-triton models``: names, and where the models are."""

from __future__ import annotations

import io

import pytest
import torch

from mlff_triton._common.remedies import install
from mlff_triton.checkpoints import hub as models
from mlff_triton.checkpoints.facts import FACTS
from tests.support.checkpoints import lightning
from tests.support.hub import serving, use

SHIPPED = ("tensornet-wb97m", "tensornet2-wb97m", "tensornet-gfn2")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with serving() as server:
        use(server, tmp_path / "cache", monkeypatch)
        yield server


def headings(text: str) -> list[str]:
    """Return the lines that name a model."""
    return [line for line in text.splitlines() if not line.startswith(" ")]


def test_models_lists_names_and_what_is_in_the_cache(run, hub):
    code, before, err = run("models")
    assert (code, err) == (0, "")
    assert hub.requests == []
    lines = headings(before)
    assert [line.split()[0] for line in lines] == [*SHIPPED, *models.NAMED]
    assert lines[0].split() == ["tensornet-wb97m", "shipped", "default"]
    assert lines[1].split() == ["tensornet2-wb97m", "shipped", "default-charged"]
    assert lines[2].split() == ["tensornet-gfn2", "shipped"]
    assert all("on the Hub" in line for line in lines[3:])
    assert "materialyze/TensorNet-PES-MatPES-r2SCAN-2025.2" in before

    content = io.BytesIO()
    torch.save(lightning(), content)
    hub.add("Acellera/AceFF-1.1", {"aceff_v1.1.ckpt": content.getvalue()})
    assert run("info", "aceff-1.1")[0] == 0
    hub.requests.clear()
    after = run("models")[1].splitlines()
    assert [line for line in after if "in the cache" in line] == [
        "aceff-1.1                in the cache  Acellera/AceFF-1.1"
    ]
    assert hub.requests == []


@pytest.mark.usefixtures("hub")
def test_models_and_info_state_the_same_facts(run):
    listed = run("models")[1]
    for facts in FACTS.values():
        lines = "\n".join(f"    {name:12}  {text}" for name, text in facts.rows())
        assert f"\n{lines}\n" in listed
    shown = words(run("info", "default")[1].replace("│", " "))
    for name, text in FACTS["tensornet-wb97m"].rows():
        if name != "elements":
            assert f"{name} {words(text)}" in shown


def words(text: str) -> str:
    return " ".join(text.split())


def test_info_has_facts_about_names_only(run, model, hub):
    content = io.BytesIO()
    torch.save(lightning(), content)
    hub.add("Acellera/AceFF-1.1", {"aceff_v1.1.ckpt": content.getvalue()})
    assert "no published errors found" in run("info", "aceff-1.1")[1]
    assert "caveat" not in run("info", model)[1]


def test_half_a_model_is_not_in_the_cache(run, hub):
    model = models.NAMED["tensornet-matpes-pbe"]
    hub.add(model.repo, {"model.json": b"{}"}, model.revision)
    assert "has no model.json with state.pt" in run("info", "tensornet-matpes-pbe")[2]
    assert "in the cache" not in run("models")[1]


def test_models_says_what_is_missing_without_huggingface_hub(run, monkeypatch):
    monkeypatch.setattr(models, "is_installed", lambda: False)
    code, out, err = run("models")
    assert (code, err) == (0, "")
    assert out.count("needs the extra hub") == len(models.NAMED)
    code, out, err = run("info", "aceff-2.0")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert install("hub") in err
