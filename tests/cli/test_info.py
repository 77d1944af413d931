"""``mlff-triton info``: what it shows of a model."""

from __future__ import annotations

from mlff_triton import Ensemble, load_model


def test_info_describes_a_model(run, model):
    code, out, err = run("info", model)
    assert (code, err) == (0, "")
    for expected in ("TorchMD-NET", "H C N O", "0 to 5 Å", "8 expnorm", "ZBL within 1.5 Å"):
        assert expected in out
    assert "A random model for tests." in out
    assert "Not for science" not in out


def test_info_describes_an_ensemble(run, model, monkeypatch):
    member = load_model(model)
    monkeypatch.setattr("mlff_triton.checkpoints.load_model", lambda _: Ensemble([member, member]))
    assert "2 members; the rows below describe the first" in run("info", model)[1]
