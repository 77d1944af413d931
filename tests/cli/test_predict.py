"""``mlff-triton predict``: what it prints, and its exit codes."""

from __future__ import annotations

import signal
from pathlib import Path

import ase.io
import pytest
from ase.build import molecule

from mlff_triton.statics import inputs


@pytest.fixture
def predict(run, model, monkeypatch):
    monkeypatch.setattr(inputs, "STRUCTURES", 2)
    ase.io.write("five.xyz", [molecule(name) for name in ("H2O", "NH3", "CH4", "C2H6", "HCN")])

    def command(*arguments):
        return run("predict", *arguments, "--model", model, "--device", "cpu")

    return command


def test_structures_of_all_files_are_computed(predict):
    code, out, err = predict("ethanol.xyz", "five.xyz", "--out", "results.xyz")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("wrote results.xyz: 6 structures, ")
    found = ase.io.read("results.xyz", ":")
    assert [len(atoms) for atoms in found] == [9, 3, 4, 5, 8, 3]
    assert all("energy" in atoms.calc.results for atoms in found)


def test_errors_of_structures_are_counted(predict):
    ase.io.write("bad.xyz", [molecule("H2O"), molecule("SO2")])
    code, out, err = predict("bad.xyz", "--out", "results.extxyz")
    assert (code, err.count("\n")) == (1, 1)
    assert "errors instead of results: 1 of 2 structures" in err
    assert "the first of bad.xyz, frame 1: " in err
    assert "wrote results.extxyz" in out
    assert "error" in ase.io.read("results.extxyz", 1).info


def test_an_interrupt_is_continued(predict, monkeypatch):
    original, calls = inputs.Text.parse, []

    def parse(self):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(self)

    monkeypatch.setattr(inputs.Text, "parse", parse)
    code, _, err = predict("five.xyz", "--out", "results.xyz")
    assert code == 130
    assert "stopped after 4 structures: the same command continues" in err
    assert not Path("results.xyz").exists()
    code, out, _ = predict("five.xyz", "--out", "results.xyz")
    assert code == 0
    assert "continues after 4 structures" in out
    assert len(ase.io.read("results.xyz", ":")) == 5


def test_options_reach_the_computation(predict):
    predict("five.xyz", "--out", "results.xyz", "--charge", 1, "--dtype", "float64", "--no-pbc")
    assert ase.io.read("results.xyz").info["charge"] == 1
    code, _, err = predict("five.xyz", "--out", "results.xyz")
    assert (code, "use --overwrite" in err) == (2, True)
    assert predict("five.xyz", "--out", "results.xyz", "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "results.csv"), "the suffix of results.csv is unknown"),
        (("--out", "results.xyz", "--workers", "0"), "workers=0 is not valid"),
        (("--out", "results.xyz", "--scheduler", "absent.json"), "there is no scheduler"),
        (("--out", "absent/results.xyz"), "absent is not a directory"),
    ],
)
def test_wrong_options_take_one_line(predict, options, message):
    code, out, err = predict("five.xyz", *options)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert message in err
    assert sorted(path.name for path in Path().iterdir()) == ["ethanol.xyz", "five.xyz"]
