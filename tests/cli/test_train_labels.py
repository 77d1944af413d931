"""The command ``train`` refuses labels that contradict each other, and doubts others at its end."""

from __future__ import annotations

import shlex
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms

from mlff_triton.units import BOHR, EV_TO_KCAL_PER_MOL, HARTREE
from tests.support.labeled import labeled
from tests.support.trajectories import CLEAR, Images, scaled

WRONG = {  # factors of right energies and forces, and the options that mend them
    "gradients": (1, -1, "--key forces=-NAME"),
    "kcal/mol, eV/Å": (EV_TO_KCAL_PER_MOL, 1, "--energy-unit kcal/mol --force-unit eV/A"),
    "gradients in Hartree/Bohr": (
        *(1 / HARTREE, -BOHR / HARTREE),
        "--key forces=-NAME --energy-unit Hartree --force-unit Hartree/Bohr",
    ),
}

TRAIN = ("--channels", 8, "--layers", 1, "--rbf", 6, "--cutoff", 4, "--device", "cpu")
ETHANE = CLEAR["frames"]()
TRAIN += ("--epochs", 1, "--batch", 8)
NAMES = {
    "data.xyz": "forces",
    "other.xyz": "REF_forces",
    "data.npz": "F",
    "data.h5": "gradient",
    "data.db": "forces",
}


def write(name: str, images: Images) -> None:
    """Write structures of one size, with forces under the name in `NAMES`."""
    if name == "other.xyz":
        images = [renamed(atoms) for atoms in images]
    if Path(name).suffix in (".xyz", ".db"):
        ase.io.write(name, images)
        return
    arrays = {
        "numbers": np.array([atoms.numbers for atoms in images]),
        "positions": np.array([atoms.positions for atoms in images]),
        NAMES[name]: np.array([atoms.get_forces() for atoms in images]),
        "energy": np.array([atoms.get_potential_energy() for atoms in images]),
    }
    if name.endswith(".npz"):
        np.savez(name, **arrays)
        return
    h5py = pytest.importorskip("h5py")
    with h5py.File(name, "w") as file:
        for label, array in arrays.items():
            file[label] = array


def renamed(atoms: Atoms) -> Atoms:
    """Return a structure with labels of other names."""
    copy = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
    copy.info["REF_energy"] = atoms.get_potential_energy()
    copy.arrays["REF_forces"] = atoms.get_forces()
    return copy


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", WRONG)
def test_the_command_refuses_and_its_advice_mends(run, name, wrong):
    energy, forces, options = WRONG[wrong]
    write(name, scaled(ETHANE, energy, forces))
    given = ("--key", "forces=gradient") if name.endswith(".h5") else ()
    code, _, err = run("train", name, *TRAIN, *given)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"mlff-triton: error: energies contradict forces: from {name}")
    assert not Path("train").exists()
    advice = err.partition(": if so, use ")[2].strip()
    assert advice == options.replace("NAME", NAMES[name])
    advice = shlex.split(advice)
    code, _, err = run("train", name, *TRAIN, *([] if "--key" in advice else given), *advice)
    assert (code, err) == (0, "")


@pytest.mark.parametrize("option", ["--valid-file", "--test-file", "--replay"])
def test_files_of_other_parts_are_checked(run, option):
    write("data.xyz", ETHANE)
    ase.io.write("wrong.xyz", scaled(ETHANE, 1, -1))
    assert run("train", "data.xyz", *TRAIN, "--out", "base")[0] == 0
    base = ("--from", "base/model.safetensors", "--device", "cpu", "--epochs", 1)
    code, _, err = run("train", "data.xyz", *base, option, "wrong.xyz")
    assert (code, err.count("\n")) == (2, 1)
    assert "from wrong.xyz, frame 0 to wrong.xyz, frame 1" in err
    remedy = "convert them" if option == "--replay" else "use --key forces=-forces"
    assert err.endswith(f"as if forces were gradients: if so, {remedy}\n")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_finished_model_that_explains_no_energies_is_doubted(run, wrong):
    """The cells of all structures differ, so that nothing can be compared before."""
    images = scaled(labeled(24, periodic=True), *WRONG[wrong][:2])
    images = [renamed(atoms) for atoms in images]
    ase.io.write("cells.xyz", images, format="extxyz")
    code, out, err = run(
        "train", "cells.xyz", *TRAIN[:10], "--epochs", 40, "--batch", 4, "--lr", 0.01
    )
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("mlff-triton: warning: the model explains the forces of its own training")
    assert "check --energy-unit, --force-unit and --key forces=-REF_forces" in err
    assert "files in train" in out
    first = Path("train/report.md").read_text().splitlines()[0]
    doubt = err.removeprefix("mlff-triton: warning: ").strip()
    assert first == f"**Warning: {doubt}.**"
    shown = " ".join(run("info", "train/model.safetensors")[1].split())
    assert f"Warning: {doubt}. New: TensorNet of " in shown
