"""``mlff-triton vibrations``: tables, warnings, the file of modes, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from mlff_triton import TensorNetCalculator
from mlff_triton.statics import relax


@pytest.fixture(scope="module")
def calculator():
    return TensorNetCalculator(device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def relaxed(calculator):
    return at_rest(molecule("H2O"), calculator)


@pytest.fixture(scope="module")
def planar(calculator):
    """Ammonia on top of the barrier of its inversion."""
    atoms = molecule("NH3")
    atoms.positions[:, 2] = 0
    return at_rest(atoms, calculator)


def at_rest(atoms, calculator):
    list(relax(atoms, calculator))
    atoms.calc = None
    return atoms


@pytest.fixture
def vibrations(run, relaxed, planar):
    ase.io.write("water.xyz", relaxed)
    ase.io.write("planar.xyz", planar)

    def command(*arguments):
        return run("vibrations", *arguments, "--device", "cpu")

    return command


def columns(out):
    return [re.split(r"\s*│\s*", line)[1:-1] for line in out.splitlines() if line[:1] == "│"]


def test_frequencies_and_thermochemistry(vibrations):
    code, out, err = vibrations(
        "water.xyz", "--temperature", 298.15, "--symmetry-number", 2, "--out", "modes.xyz"
    )
    assert (code, err) == (0, "")
    modes, gas = columns(out)[:3], columns(out)[3:]
    frequencies = [float(row[1]) for row in modes]
    assert frequencies == sorted(frequencies)
    assert 1550 < frequencies[0] < 1650
    assert 3900 < frequencies[2] < 3970
    for _, frequency, energy in modes:
        assert float(energy) == pytest.approx(float(frequency) * 0.1239842, abs=0.06)
    zero_point = float(re.search(r"zero-point energy ([\d.]+) eV", out)[1])
    assert zero_point == pytest.approx(sum(frequencies) / 2 * 0.1239842e-3, abs=1e-4)
    values = {row[0]: [float(value) for value in row[1:]] for row in gas}
    assert values["entropy TS"][1] == pytest.approx(0.29815 * 188.8, abs=0.2)
    assert values["Gibbs energy G"][0] == pytest.approx(
        values["enthalpy H"][0] - values["entropy TS"][0], abs=2e-4
    )
    frames = ase.io.read("modes.xyz", ":")
    assert [f"{atoms.info['frequency']:.1f}" for atoms in frames] == [row[1] for row in modes]
    for atoms in frames:
        assert np.linalg.norm(atoms.arrays["mode"]) == pytest.approx(1, abs=1e-6)


def test_imaginary_modes_are_marked(vibrations):
    code, out, err = vibrations("planar.xyz")
    assert code == 0
    assert re.fullmatch(r"[\d.]+i", columns(out)[0][1])
    assert "i" not in columns(out)[1][1]
    assert err.count("\n") == 1
    assert "1 mode is imaginary" in err
    code, _, err = vibrations("planar.xyz", "--temperature", 300)
    assert code == 2
    assert err.splitlines()[-1].startswith("mlff-triton: error: an ideal gas needs")


def test_forces_that_do_not_vanish_are_reported(vibrations):
    code, _, err = vibrations("ethanol.xyz")
    assert code == 0
    assert re.search(r"the largest force is 0\.8\d+ eV/Å", err)
    assert "mlff-triton relax ethanol.xyz first" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pressure", 2), "--pressure has no effect without --temperature"),
        (("--symmetry-number", 2), "--symmetry-number has no effect"),
        (("--temperature", -5), "temperature must be a positive number, not -5"),
        (("--displacement", 0), "displacement must be a positive number, not 0"),
        (("--out", "water.xyz"), "water.xyz exists"),
    ],
)
def test_mistakes_take_one_line(vibrations, arguments, message):
    code, out, err = vibrations("water.xyz", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_crystal_is_not_an_ideal_gas(vibrations, relaxed):
    atoms = relaxed.copy()
    atoms.set_cell([6, 6, 6])
    atoms.pbc = True
    ase.io.write("ice.xyz", atoms)
    code, out, err = vibrations("ice.xyz", "--temperature", 300)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "periodic" in err
    assert len(columns(vibrations("ice.xyz")[1])) == 6
    assert vibrations("ice.xyz", "--no-pbc", "--temperature", 300)[0] == 0


def test_a_saddle_is_left_on_request(vibrations):
    err = vibrations("planar.xyz")[2]
    assert "displace along mode 0 and relax again" in err
    assert "mlff-triton vibrations planar.xyz --minimum minimum.xyz" in err
    code, out, err = vibrations("planar.xyz", "--minimum", "minimum.xyz", "--temperature", 300)
    assert (code, err) == (0, "")
    assert re.search(r"displaced along mode 0 \([\d.]+i 1/cm\) and relaxed in \d+ steps", out)
    assert "Gibbs energy" in out
    assert not any("i" in row[1] for row in columns(out)[:6])
    atoms = ase.io.read("minimum.xyz")
    assert np.ptp(atoms.positions[:, 2]) > 0.2  # a pyramid
    assert atoms.get_potential_energy() < ase.io.read("planar.xyz").info.get("energy", 0)
    code, out, err = vibrations("minimum.xyz", "--minimum", "again.xyz")
    assert (code, err) == (0, "")
    assert "displaced" not in out
    np.testing.assert_allclose(ase.io.read("again.xyz").positions, atoms.positions, atol=1e-7)


def test_a_structure_that_is_not_at_rest_is_relaxed_to_a_minimum(vibrations):
    code, out, err = vibrations("ethanol.xyz", "--minimum", "minimum.xyz", "--fix", "C")
    assert (code, err) == (0, "")
    assert "relaxed in" in out
    assert ase.io.read("minimum.xyz").constraints[0].index.tolist() == [0, 1]


def test_a_minimum_that_is_not_found(vibrations, monkeypatch):
    monkeypatch.setattr("mlff_triton.cli.vibrations.ROUNDS", 0)
    code, _, err = vibrations("planar.xyz", "--minimum", "minimum.xyz", "--temperature", 300)
    assert code == 1
    assert err.count("\n") == 1
    assert err.endswith("the structure is not at a minimum of the energy\n")


def test_frequencies_for_other_programs(vibrations):
    code, out, _ = vibrations("planar.xyz", "--frequencies", "modes.csv")
    assert code == 0
    assert "wrote modes.csv" in out
    table = np.genfromtxt("modes.csv", delimiter=",", names=True, dtype=None)
    assert table["mode"].tolist() == list(range(6))
    assert table["is_imaginary"].tolist() == [True] + [False] * 5
    assert table["frequency_per_cm"][0] < 0 < table["frequency_per_cm"][1]
    shown = [float(row[1].rstrip("i")) for row in columns(out)]
    np.testing.assert_allclose(np.abs(table["frequency_per_cm"]), shown, atol=0.05)
    np.testing.assert_allclose(
        table["energy_meV"], table["frequency_per_cm"] * 0.1239842, rtol=1e-6
    )

    arguments = ("--frequencies", "modes.json", "--temperature", 300, "--symmetry-number", 2)
    assert vibrations("water.xyz", *arguments)[0] == 0
    content = json.loads(Path("modes.json").read_text())
    assert content["n_imaginary"] == 0
    assert content["fixed_atoms"] == []
    assert [set(mode) for mode in content["modes"]] == [set(table.dtype.names)] * 3
    assert content["ideal_gas"]["temperature"] == 300
    assert content["ideal_gas"]["gibbs_energy"] < content["energy_eV"] + 1
    code, _, err = vibrations("water.xyz", "--frequencies", "modes.json")
    assert (code, err.count("\n")) == (2, 1)
    assert (
        vibrations("water.xyz", "--frequencies", "modes.json", "--fix", "O", "--overwrite")[0] == 0
    )
    content = json.loads(Path("modes.json").read_text())
    assert content["fixed_atoms"] == [0]
    assert len(content["modes"]) == 6
    assert content["ideal_gas"] is None
    code, _, err = vibrations("water.xyz", "--frequencies", "modes.txt")
    assert (code, err.count("\n")) == (2, 1)
    assert "must end with .csv or .json" in err
