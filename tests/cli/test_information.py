"""Information of structures comes back from every command that writes extended XYZ."""

from __future__ import annotations

from pathlib import Path

import ase.io
import pytest
from ase import Atoms
from ase.build import molecule

from mlff_triton.dynamics import load_restart

INFO = {
    "id": "aGVsbG8=",
    "path": "C:\\data\\",
    "smiles": "C/C=C\\C",
    "quote": 'say "no"',
    "empty": "",
    "number": "007",
    "list": [1, 2, 3],
    "words": ["a b", "c="],
    "nothing": None,
    "=": "x",
    "é ü": "two\nlines",
}
ODD = {"": 1, "virial": "no matrix", "energy": 5.0, "Properties": "species:S:1", "pbc": 3}
COMMANDS = {
    "energy": (("energy", "in.traj", "--out", "new.xyz"), "new.xyz", {}),
    "predict": (("predict", "in.traj", "--out", "new.xyz"), "new.xyz", {"error": "of them"}),
    "relax": (("relax", "in.traj", "--steps", 1, "--out", "r"), "r/final.xyz", {}),
    "relax, steps": (("relax", "in.traj", "--steps", 1, "--out", "r"), "r/trajectory.xyz", {}),
    "vibrations": (("vibrations", "in.traj", "--out", "new.xyz"), "new.xyz", {"mode": "mine"}),
    "vibrations, minimum": (
        ("vibrations", "in.traj", "--minimum", "new.xyz", "--dtype", "float64"),
        "new.xyz",
        {},
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_information_comes_back(run, model, monkeypatch, command):
    monkeypatch.setattr("mlff_triton.cli.vibrations.ROUNDS", 0)
    arguments, name, own = COMMANDS[command]
    odd = ODD | own
    atoms = molecule("H2O")
    atoms.info = INFO | odd
    ase.io.write("in.traj", atoms)
    assert run(*arguments, "--model", model, "--device", "cpu")[0] in (0, 1)
    for found in ase.io.read(name, ":"):
        if "mode" not in own:
            assert "energy" in found.calc.results
        info = {
            key: value if not hasattr(value, "tolist") else value.tolist()
            for key, value in found.info.items()
            if key not in ("step", "mode", "frequency")
        }
        assert info == INFO | {"other": odd}


def test_a_relaxation_forgets_the_step_of_an_earlier_one(run, model):
    for source, out in (("ethanol.xyz", "a"), ("a/final.xyz", "b"), ("b/final.xyz", "c")):
        run("relax", source, "--steps", 1, "--out", out, "--model", model, "--device", "cpu")
    assert ase.io.read("c/final.xyz").info == {"step": 1}


@pytest.mark.parametrize("name", ['a="b\\.xyz', "two words=.xyz", "é\\'.xyz"])
def test_names_of_files_come_back_from_simulations(run, model, name):
    ase.io.write("plain.xyz", molecule("H2O"))
    Path("plain.xyz").rename(name)
    options = ("--steps", 1, "--trajectory", "xyz", "--model", model, "--device", "cpu")
    code, _, err = run("md", name, "ethanol.xyz", *options, "--out", "run")
    assert code == 0, err
    first = ase.io.read(min(Path("run").glob("trajectory*.xyz")))
    assert name in first.info.values()
    assert name in load_restart("run/restart.npz").systems[0].info.values()


CHARGES = ["", "abc", "0.5", "1 0", "\\"]
ALL = {
    "energy": (),
    "predict": ("--out", "o.xyz"),
    "relax": (),
    "md": ("--steps", 1),
    "vibrations": (),
}


@pytest.mark.parametrize("command", ALL)
@pytest.mark.parametrize("text", CHARGES)
def test_texts_are_no_charges(run, model, command, text):
    """A charge of 0 is never taken instead, and the message names the file."""
    atoms = Atoms("OH2", [[0, 0, 0], [0, 0.76, 0.59], [0, -0.76, 0.59]], info={"charge": text})
    ase.io.write("in.traj", atoms)
    options = (*ALL[command], "--model", model, "--device", "cpu")
    code, _, err = run(command, "in.traj", *options)
    assert (code, err.count("\n")) == (1 if command == "predict" else 2, 1), err
    assert "the total charge must be an integer" in err
    assert "in.traj" in err
