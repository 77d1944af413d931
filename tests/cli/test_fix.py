"""The option ``--fix`` of md, relax and vibrations, and files that fix atoms."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from ase.constraints import FixAtoms, FixBondLength, FixCartesian, FixScaled

from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics import load_restart

COMMANDS = ("md", "relax", "vibrations")


@pytest.fixture
def command(run, model):
    def command(name, *arguments):
        steps = () if name == "vibrations" else ("--steps", 5, "--out", "out")
        return run(name, *arguments, *steps, "--model", model, "--device", "cpu")

    return command


def boxed(constraint):
    atoms = molecule("CH3CH2OH", cell=[9, 9, 9], pbc=True)
    atoms.set_constraint(constraint)
    return atoms


FILES = {
    "slab.traj": FixAtoms([0, 1]),
    "slab.xyz": FixAtoms([0, 1]),
    "POSCAR": FixAtoms([0, 1]),
    "slab.json": FixAtoms([0, 1]),
    "axes.xyz": [FixCartesian([0, 1])],
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("which", COMMANDS)
def test_files_fix_atoms(command, which, name):
    ase.io.write(name, boxed(FILES[name]))
    code, out, _ = command(which, name)
    assert code in (0, 1)  # as a relaxation need not converge
    assert out.startswith(f"{name}: 2 of 9 atoms are fixed (C2)\n")
    if which == "vibrations":
        assert out.count("│") == 4 * 21
        return
    frames = ase.io.read("out/trajectory.xyz", ":")
    assert len(frames) > 1
    for frame in frames:
        assert np.flatnonzero(fixed_atoms(frame)).tolist() == [0, 1]
        np.testing.assert_allclose(frame.positions[:2], frames[0].positions[:2], atol=1e-8)
    assert (frames[-1].positions[2:] != frames[0].positions[2:]).any(1).all()


@pytest.mark.parametrize("which", COMMANDS)
def test_an_option_replaces_the_atoms_of_the_file(command, which):
    ase.io.write("slab.traj", boxed(FixAtoms([0, 1])))
    assert "slab.traj: 1 of 9 atoms are fixed (O)\n" in command(which, "slab.traj", "--fix", "O")[1]
    if which != "vibrations":
        assert ase.io.read("out/trajectory.xyz").constraints[0].index.tolist() == [2]
    again = () if which == "vibrations" else ("--overwrite",)
    out = command(which, "slab.traj", "--fix", "none", *again)[1]
    assert "fixed" not in out


@pytest.mark.parametrize("which", COMMANDS)
@pytest.mark.parametrize(
    ("name", "constraint", "kind"),
    [
        ("a.traj", FixBondLength(0, 1), "FixBondLengths"),
        ("a.xyz", [FixCartesian(0, (True, False, False))], "FixCartesian"),
        ("POSCAR", [FixScaled(0, (True, False, False))], "FixScaled"),
    ],
)
def test_other_constraints_are_refused_unless_replaced(command, which, name, constraint, kind):
    ase.io.write(name, boxed(constraint))
    code, out, err = command(which, name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{name}: the constraint {kind} is not supported" in err
    assert not Path("out").exists()
    assert command(which, name, "--fix", "0")[0] in (0, 1)


@pytest.mark.parametrize("which", COMMANDS)
@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ("z<-9", "ethanol.xyz: 'z<-9' selects no atom: z lies between"),
        ("0-9", "ethanol.xyz: atom 9 does not exist"),
        ("C,H,O", "ethanol.xyz: all atoms are fixed"),
        ("carbon", "ethanol.xyz: 'carbon' selects no atoms, as it is not an index"),
    ],
)
def test_mistakes_take_one_line(command, which, selection, message):
    code, out, err = command(which, "ethanol.xyz", "--fix", selection)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not Path("out").exists()


def test_a_run_continues_with_its_fixed_atoms(command, run):
    code, out, _ = command("md", "ethanol.xyz", "--fix", "0-1,O", "--replicas", 2)
    assert code == 0
    assert out.startswith("ethanol.xyz: 3 of 9 atoms are fixed (C2O)\n")
    assert "2 systems of 9, 3 fixed" in out
    code, out, _ = run("md", "--restart", "out/restart.npz", "--extend", 5)
    assert code == 0
    assert "3 fixed" in out
    for atoms in load_restart("out/restart.npz").systems:
        assert atoms.constraints[0].index.tolist() == [0, 1, 2]
        np.testing.assert_array_equal(atoms.positions[:3], molecule("CH3CH2OH").positions[:3])
    code, _, err = run("md", "--restart", "out/restart.npz", "--fix", "O")
    assert (code, err.count("\n")) == (2, 1)
    assert "leave out fix" in err


def test_npt_with_fixed_atoms_is_refused(command):
    ase.io.write("slab.xyz", boxed(FixAtoms([0])))
    code, _, err = command("md", "slab.xyz", "--ensemble", "npt")
    assert (code, err.count("\n")) == (2, 1)
    assert "npt moves every atom with the cell" in err
    assert not Path("out").exists()


def test_fixed_atoms_keep_their_fractions_of_a_cell_that_is_relaxed(command):
    ase.io.write("slab.traj", boxed(FixAtoms([0, 1])))
    command("relax", "slab.traj", "--cell")
    first, *_, last = ase.io.read("out/trajectory.xyz", ":")
    assert not np.allclose(first.cell, last.cell)
    scaled = [atoms.get_scaled_positions(wrap=False) for atoms in (first, last)]
    np.testing.assert_allclose(scaled[0][:2], scaled[1][:2], atol=1e-7)
    assert not np.allclose(scaled[0][2:], scaled[1][2:], atol=1e-7)
