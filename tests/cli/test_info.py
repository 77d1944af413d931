"""``mlff-triton info``: descriptions of models and ensembles."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlff_triton import save_model
from tests.support.checkpoints import lightning, native, zipped
from tests.support.tensornets import uncertain


def test_info_describes_a_model(run, model):
    code, out, err = run("info", model)
    assert (code, err) == (0, "")
    for expected in ("TorchMD-NET", "H C N O", "0 to 5 Å", "8 expnorm", "ZBL within 1.5 Å"):
        assert expected in out
    assert "A random model for tests." in out
    assert "Not for science" not in out


def test_info_describes_an_ensemble(run):
    zipped(Path("two.zip"), a=lightning(0), b=lightning(1))
    code, out, err = run("info", "two.zip")
    assert (code, err) == (0, "")
    assert "2 members; the rows below describe the first" in out


def test_info_says_whether_a_model_knows_its_uncertainty(run):
    for limit in (0.25, None):
        save_model(uncertain(native(), 3, limit), "known.safetensors")
        out = run("info", "known.safetensors")[1]
        assert "expected force error of each atom" in out
        assert ("unusual above 0.25 eV/Å" in out) == (limit is not None)
    save_model(native(), "unknown.safetensors")
    assert "not known; mlff-triton train makes" in run("info", "unknown.safetensors")[1]


def test_info_escapes_what_could_change_a_terminal(run):
    card = "Good.\x1b[2J\x1b]0;title\x07 \u202eesreveR\u202c [red]:smile:[/red]"
    save_model(native(), "[red]model.safetensors", card)
    code, out, err = run("info", "[red]model.safetensors")
    assert (code, err) == (0, "")
    shown = out.replace("\n", "")
    assert r"Good.\x1b[2J\x1b]0;title\x07 \u202eesreveR\u202c [red]:smile:[/red]" in shown
    assert "[red]model.safetensors" in out
    assert not set(out) & set("\x1b\x07\u202e\u202c")


def test_info_shows_the_beginning_of_a_long_card(run):
    save_model(native(), "long.safetensors", "word " * 10_000)
    assert len(run("info", "long.safetensors")[1]) < 6_000
    save_model(native(), "bare.safetensors")
    Path("bare.md").write_bytes(b"\xff beside")
    assert "\ufffd beside" in run("info", "bare.safetensors")[1]


@pytest.mark.parametrize("path", ["notes.txt", "/dev/zero"])
def test_info_of_anything_else_is_one_line_without_unsafe_advice(run, path):
    Path("notes.txt").write_text("Not a model.\n" * 50)
    code, out, err = run("info", path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert len(err) < 500
    assert "weights_only" not in err
