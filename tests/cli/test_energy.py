"""``mlff-triton energy``: the table, the file, and refusals."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from mlff_triton import TensorNetCalculator
from mlff_triton.engine import dispatch
from tests.support.molecule_files import v2000


@pytest.fixture
def energy(run, model):
    ase.io.write("two.xyz", [molecule("H2O"), molecule("NH3", cell=[5, 5, 5], pbc=True)])

    def command(*arguments):
        return run("energy", *arguments, "--model", model, "--device", "cpu")

    return command


def test_all_frames_of_all_files_are_computed(energy, model):
    code, out, err = energy("ethanol.xyz", "two.xyz", "--out", "results.extxyz")
    assert (code, err) == (0, "")
    rows = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    heads = [tuple(cell.strip() for cell in row[1:4]) for row in rows if row[2].strip()]
    assert heads == [("ethanol.xyz", "0", "9"), ("two.xyz", "0", "3"), ("two.xyz", "1", "4")]
    calculator = TensorNetCalculator(model, device="cpu")
    for name, found in zip(
        ("CH3CH2OH", "H2O", "NH3"), ase.io.read("results.extxyz", ":"), strict=True
    ):
        atoms = molecule(name, cell=found.cell, pbc=found.pbc)
        expected = calculator.get_potential_energy(atoms)
        assert found.get_potential_energy() == pytest.approx(expected, abs=1e-4)
        assert f"{found.get_potential_energy():.6f}" in out
        np.testing.assert_allclose(
            found.get_forces(), calculator.get_forces(atoms), atol=1e-3
        )  # positions have eight decimals in the file
        largest = np.linalg.norm(found.get_forces(), axis=1).max()
        assert f"{largest:.4f}" in out
    assert found.get_stress().shape == (6,)
    assert out.endswith("wrote results.extxyz\n")


@pytest.mark.parametrize(
    ("images", "compiled", "backend"), [(1, False, "exact"), (1, True, "cpu"), (40, False, "cpu")]
)
def test_a_few_structures_do_not_wait_for_a_compiler(
    energy, monkeypatch, images, compiled, backend
):
    chosen, choose = [], dispatch.choose

    def watch(*given):
        chosen.append(choose(*given))
        return chosen[-1]

    monkeypatch.setattr(dispatch, "has_loops", lambda: compiled)
    monkeypatch.setattr(dispatch, "choose", watch)
    assert energy(*["ethanol.xyz"] * images)[0] == 0
    assert set(chosen) == {backend}  # of the command, and of its engine


def test_stresses_are_shown_in_gpa(energy):
    out = energy("two.xyz", "--out", "results.xyz")[1]
    assert "GPa" in out
    stress = ase.io.read("results.xyz").get_stress() * 160.21766
    assert all(f"{value:.3f}" in out for value in stress)
    assert "GPa" not in energy("ethanol.xyz")[1]
    assert "GPa" not in energy("two.xyz", "--no-pbc")[1]


def test_a_charge_replaces_that_of_the_file(energy):
    energy("ethanol.xyz", "--out", "neutral.xyz")
    energy("ethanol.xyz", "--charge", 1, "--out", "cation.xyz")
    neutral, cation = (ase.io.read(name) for name in ("neutral.xyz", "cation.xyz"))
    assert cation.info["charge"] == 1
    assert cation.get_potential_energy() != neutral.get_potential_energy()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("ethanol.xyz", "ethanol.xyz exists"),
        ("results.csv", "must end with .xyz or .extxyz"),
        ("absent/results.xyz", "absent is not a directory"),
        (".xyz", "must end with"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_first(energy, out, message):
    code, shown, err = energy("two.xyz", "--out", out)
    assert (code, shown, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_result_is_overwritten_on_request(energy):
    assert energy("two.xyz", "--out", "ethanol.xyz", "--overwrite")[0] == 0
    assert len(ase.io.read("ethanol.xyz", ":")) == 2


def test_a_bad_frame_is_named(energy):
    ase.io.write("bad.xyz", [molecule("H2O"), molecule("SO2")])
    code, _, err = energy("ethanol.xyz", "bad.xyz")
    assert (code, err.count("\n")) == (2, 1)
    assert "bad.xyz, frame 1: " in err


def test_titles_of_records_are_shown(energy):
    names = ("H2O", "CH4")
    Path("two.sdf").write_text("".join(v2000(molecule(n), f"[{n}]", {"id": "7"}) for n in names))
    code, out, _ = energy("two.sdf", "--out", "results.xyz")
    assert code == 0
    assert all(f"[{name}]" in out for name in names)
    found = ase.io.read("results.xyz", ":")
    assert [atoms.info["title"] for atoms in found] == ["[H2O]", "[CH4]"]
    assert [atoms.info["id"] for atoms in found] == [7, 7]
