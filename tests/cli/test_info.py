"""``mlff-triton info``: descriptions of models and ensembles."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoints import lightning, zipped


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
