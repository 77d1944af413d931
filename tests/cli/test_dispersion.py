"""The option `--dispersion` of commands: what they add, say and refuse."""

from __future__ import annotations

import warnings
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from mlff_triton.checkpoints.facts import FACTS
from mlff_triton.errors import DispersionWarning
from mlff_triton.testing import assert_close
from tests.cli.conftest import CARD
from tests.support.checkpoints import save_tiny_model
from tests.support.dispersion import expected_of

pytest.importorskip("dftd3", reason="s-dftd3 is an optional extra")

ADDS = "adds dispersion d3bj:pbe, which dftd3 computes on the CPU in float64\n"
HOST = "dispersion is not in the engine's own steps: each passes through the host\n"
WITH = ("--dispersion", "d3bj:PBE")
CPU = ("--device", "cpu", "--dtype", "float64")


def expected():
    return expected_of(molecule("CH3CH2OH"), "pbe")


@pytest.mark.parametrize("command", ["energy", "predict"])
def test_results_have_it(run, model, command):
    for name, options in (("plain.xyz", ()), ("with.xyz", WITH)):
        code, out, err = run(
            command, "ethanol.xyz", "--model", model, *CPU, "--out", name, *options
        )
        assert (code, err) == (0, "")
        added = ADDS if command == "energy" else "adds dispersion d3bj:pbe\n"
        assert (added in out) == (options == WITH)
    plain, found = (ase.io.read(name) for name in ("plain.xyz", "with.xyz"))
    difference = found.get_potential_energy() - plain.get_potential_energy()
    assert difference == pytest.approx(expected().energy, abs=1e-7)
    forces = found.get_forces() - plain.get_forces()
    assert np.abs(forces - expected().forces).max() < 2e-8  # digits of the files


def test_predict_does_not_continue_with_another(run, model):
    run("predict", "ethanol.xyz", "--model", model, *CPU, "--out", "out.xyz", *WITH)
    code, _, err = run("predict", "ethanol.xyz", "--model", model, *CPU, "--out", "out.xyz")
    assert code == 2
    assert "out.xyz" in err


def test_relax_and_vibrations_use_it(run, model):
    options = ("--model", model, *CPU, *WITH)
    out = run("relax", "ethanol.xyz", *options, "--steps", "2", "--out", "new")[1]
    assert ADDS in out
    first, *_ = ase.io.read("new/trajectory.xyz", ":")
    run("energy", "ethanol.xyz", *options, "--out", "one.xyz")
    assert_close(first.get_forces(), ase.io.read("one.xyz").get_forces(), 1, floor=0.1)
    out = run("vibrations", "ethanol.xyz", *options)[1]
    plain = run("vibrations", "ethanol.xyz", *options[:-2])[1]
    assert out.replace(ADDS, "") != plain


def test_md_says_that_steps_pass_through_the_host_and_continues(run, model):
    options = ("md", "ethanol.xyz", "--model", model, *CPU, "--every", "2", "--log-every", "1")
    code, out, _ = run(*options, "--steps", "4", *WITH, "--out", "whole")
    assert code == 0
    assert ADDS + HOST in out
    run(*options, "--steps", "2", *WITH, "--out", "parts")
    code, out, _ = run("md", "--restart", "parts/restart.npz", "--extend", "2")
    assert code == 0
    assert ADDS + HOST in out
    for name in ("trajectory.xyz", "log.csv"):
        assert Path("whole", name).read_text() == Path("parts", name).read_text()
    run(*options, "--steps", "4", "--out", "plain")
    assert Path("whole/log.csv").read_text() != Path("plain/log.csv").read_text()


def test_a_restart_keeps_its_dispersion(run, model):
    options = ("md", "ethanol.xyz", "--model", model, *CPU, "--steps", "2")
    run(*options, *WITH, "--out", "with")
    run(*options, "--out", "plain")
    again = ("--extend", "2", "--dispersion")
    assert run("md", "--restart", "with/restart.npz", *again, "D3BJ:pbe")[0] == 0
    for folder, method, before in (
        ("with", "d3bj:r2scan", "d3bj:pbe"),
        ("plain", "d3bj:pbe", "none"),
    ):
        code, _, err = run("md", "--restart", f"{folder}/restart.npz", *again, method)
        assert code == 2
        assert f"--dispersion contradicts the restart file, which says {before}" in err


@pytest.mark.parametrize("command", ["energy", "predict", "relax", "vibrations", "md", "explain"])
def test_unknown_names_are_refused_in_one_line(run, command):
    options = ("--out", "new.xyz") if command == "predict" else ()
    structure = () if command == "explain" else ("ethanol.xyz",)
    code, out, err = run(
        command, *structure, *options, "--device", "cpu", "--dispersion", "d3bj:pbee"
    )
    assert (code, out) == (2, "")
    assert err.startswith(
        "mlff-triton: error: dispersion 'd3bj:pbee' is unknown: did you mean d3bj:pbe"
    )
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["energy", "predict", "relax", "vibrations", "md", "explain"])
def test_a_model_that_has_dispersion_gets_one_warning(run, command):
    options = {
        "predict": ("--out", "new.xyz"),
        "relax": ("--steps", "1"),
        "md": ("--steps", "1"),
    }.get(command, ())
    structure = () if command == "explain" else ("ethanol.xyz",)
    with pytest.warns(DispersionWarning, match=r"have dispersion \(D3\)") as found:
        run(command, *structure, *options, *CPU, *WITH)
    assert len([one for one in found if one.category is DispersionWarning]) == 1


def test_other_spellings_of_the_fitting_correction_give_no_warning(run, model, monkeypatch):
    monkeypatch.setitem(FACTS, str(model), FACTS["tensornet-matpes-pbe"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", DispersionWarning)
        assert run("energy", "ethanol.xyz", "--model", model, *CPU, *WITH)[0] == 0


def test_cards_warn_too(run, tmp_path):
    path = save_tiny_model(tmp_path, CARD + "\n\nLabels: B3LYP-D3(BJ).")
    with pytest.warns(DispersionWarning, match=r"the card of .* names D3"):
        assert run("energy", "ethanol.xyz", "--model", path, *CPU, *WITH)[0] == 0
    assert "its card names D3" in run("info", path)[1]


def test_info_and_explain_say_so(run, model):
    out = run("info", "tensornet-gfn2")[1]
    assert "as in the reference, D4: add no correction" in out
    assert "not known; --dispersion adds" in run("info", model)[1].replace("\n", " ")
    code, out, _ = run("explain", model, *CPU, *WITH)
    assert code == 0
    assert out.endswith(ADDS + "in simulations, " + HOST)
    assert "dispersion" not in run("explain", model, *CPU)[1]
