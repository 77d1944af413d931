"""``mlff-triton convert``: exact copies in the native format."""

from __future__ import annotations

import numpy as np

from mlff_triton import load_model


def test_convert_writes_the_same_model(run, model):
    assert run("convert", model, "copy.safetensors") == (0, "wrote copy.safetensors\n", "")
    code, _, err = run("convert", model, "copy.safetensors")
    assert code == 2
    assert "copy.safetensors exists: choose another name, or use --overwrite" in err
    assert run("convert", model, "copy.safetensors", "--overwrite")[0] == 0
    original, copy = load_model(model).state_dict(), load_model("copy.safetensors").state_dict()
    for name in original:
        np.testing.assert_array_equal(original[name], copy[name])
    assert "A random model for tests." in run("info", "copy.safetensors")[1]


def test_impossible_targets_are_one_line(run, model):
    for target, reason in (
        ("a" * 300, "cannot write"),
        ("missing/copy.safetensors", "missing is not a directory"),
    ):
        code, out, err = run("convert", model, target)
        assert (code, out) == (2, "")
        assert reason in err
        assert err.count("\n") == 1
