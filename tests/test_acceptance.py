"""The comparisons of `examples/training/acceptance.py`, by potentials whose answers are known."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import Calculator, all_changes

from mlff_triton import TensorNet2, TensorNet2Config, save_model
from mlff_triton.errors import InputError
from mlff_triton.testing import water_box


class Spring(Calculator):
    """A spring between the first two atoms; it pushes unless its constant is negative."""

    implemented_properties = ("energy", "forces")

    def __init__(self, constant: float, length: float = 1.0) -> None:
        super().__init__()
        self.constant, self.length = constant, length

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        forces = np.zeros((len(self.atoms), 3))
        energy = 0.0
        if len(self.atoms) > 1:
            d = self.atoms.positions[1] - self.atoms.positions[0]
            r = np.linalg.norm(d)
            energy = self.constant / 2 * (r - self.length) ** 2
            forces[1] = -self.constant * (r - self.length) * d / r
            forces[0] = -forces[1]
        self.results = {"energy": energy, "forces": forces}


@pytest.fixture
def comparison(training_modules):
    return training_modules("comparison")


@pytest.fixture
def criteria(training_modules):
    return training_modules("criteria")


@pytest.fixture
def verdict(training_modules):
    return training_modules("verdict")


def molecule_of(training_modules, name, symbols, positions, **facts):
    """Return a molecule with a bond between its first two atoms."""
    facts = {"group": "held_out", "split": "test"} | facts
    atoms = Atoms(symbols, positions)
    return training_modules("geometry").Structure(
        name=name,
        conformer=0,
        numbers=atoms.numbers,
        positions=atoms.positions,
        bonds=((0, 1),),
        **facts,
    )


@pytest.mark.parametrize("constant", [5.0, 36.0])
def test_frequency_of_a_spring(criteria, constant):
    """One eV/Å²/u is 9.82269e27 / s², whose root is 521.47 / cm."""
    atoms = Atoms("HF", [(0, 0, 0), (0, 0, 1.0)])
    a, b = atoms.get_masses()
    found = criteria.frequencies(atoms, Spring(constant))
    expected = math.sqrt(constant * (1 / a + 1 / b) * 9.64853322e27) / (2 * math.pi * 2.99792458e10)
    assert found == pytest.approx([expected], rel=1e-3)


def test_only_repelling_pairs_pass_as_walls(comparison, criteria, verdict):
    for constant, is_missed in ((4.0, False), (-4.0, True)):
        methods = comparison.Methods(Spring(constant, 3.0), Spring(1.0), ("H", "Cl"), [])
        found = list(criteria.walls(methods))
        assert [each.item for each in found] == ["H-H", "H-Cl", "Cl-Cl"]
        assert bool(verdict.misses(list(verdict.rows(found)))) is is_missed


def test_energies_that_do_not_add_up_are_missed(comparison, criteria, verdict):
    methods = comparison.Methods(Spring(1.0), Spring(1.0), ("H", "C"), [])
    found = list(criteria.atoms_alone(methods))
    assert found[0].model == pytest.approx(0.5 * (criteria.FAR - 1) ** 2)
    assert verdict.misses(list(verdict.rows(found)))


@pytest.mark.parametrize(("model", "count"), [(2.0, 0), (2.9, 0), (4.0, 2), (math.nan, 2)])
def test_rows_above_a_limit_are_misses(comparison, verdict, model, count):
    found = [comparison.Finding("hydrogen bonds", "dimer", "kcal/mol", model, 2.0)]
    found.append(found[0]._replace(item="other", model=2.1))
    table = list(verdict.rows(found))
    assert [row[1] for row in table] == ["dimer", "other", "mean", "largest"]
    assert len(verdict.misses(table)) == count


def test_malonaldehyde_is_symmetric(criteria):
    atoms = criteria.malonaldehyde()
    mirrored = atoms.positions * [-1, 1, 1]
    distances = np.linalg.norm(mirrored[:, None] - atoms.positions, axis=2)
    partners = distances.argmin(1)
    assert distances.min(1).max() < 1e-12
    assert (atoms.numbers[partners] == atoms.numbers).all()
    assert str(atoms.symbols.formula.convert("hill")) == "C3H4O2"


class Tight(torch.nn.Module):
    """A teacher that holds atoms at their mean position."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = inputs["coord"]
        zero = torch.zeros_like(x)
        return {
            "energy": (x**2).sum(-1).sum(-1).double(),
            "forces": -2 * x,
            "charges": zero[:, :, 0],
            "energy_std": zero[:, 0, 0].double(),
            "forces_std": zero,
        }


@pytest.fixture
def acceptance(training_modules, tmp_path, monkeypatch):
    """Return a function that runs the script with a teacher and some structures."""
    teacher, conformers = tmp_path / "teacher.jpt", tmp_path / "conformers.npz"
    torch.jit.script(Tight()).save(str(teacher))
    monkeypatch.chdir(tmp_path)

    def run(structures, *words):
        training_modules("conformers").save_structures(conformers, structures)
        given = ["acceptance.py", "--model", "tensornet-gfn2", "--teacher", str(teacher)]
        given += ["--conformers", str(conformers)]
        monkeypatch.setattr("sys.argv", [*given, *words])
        with pytest.raises(SystemExit) as end:
            training_modules("acceptance").main()
        with Path("acceptance.csv").open() as file:
            return end.value.code, list(csv.DictReader(file))

    return run


def test_a_model_misses_what_it_never_learned(acceptance, training_modules, capsys):
    h2 = molecule_of(training_modules, "hydrogen", "H2", [(0, 0, 0), (0.74, 0, 0)])
    code, rows = acceptance([h2], "--only", "hydrogen", "atoms_alone", "--markdown", "card.md")
    assert code == 1
    assert "H2, largest" in capsys.readouterr().out
    assert rows[0]["check"] == "H2"
    assert float(rows[2]["error"]) > float(rows[2]["limit"])
    lines = Path("card.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| H2", "| additive"]
    assert lines[2].endswith("| largest 20 | missed |")
    assert lines[3].endswith("| largest 0.0001 | met |")


def test_what_a_model_cannot_do_has_a_line(acceptance, training_modules, capsys):
    h2 = molecule_of(training_modules, "hydrogen", "H2", [(0, 0, 0), (0.74, 0, 0)])
    salt = molecule_of(training_modules, "salt", "NaCl", [(0, 0, 0), (2.4, 0, 0)])
    ion = molecule_of(training_modules, "ion", "OH", [(0, 0, 0), (1, 0, 0)], charge=-1)
    names = "forces", "uncertainty", "torsions"
    code, rows = acceptance([salt, h2, ion], "--only", *names, "--markdown", "card.md")
    assert code == 1
    found = {row["check"]: (row["item"], row["met"]) for row in rows if not row["error"]}
    left_out = "left out: salt, ion; the model does not know Cl, Na, total charges"
    assert found == {
        "forces": (left_out, ""),
        "uncertainty": ("the model does not know its uncertainty", "no"),
        "torsions": ("there is nothing to compare", "no"),
    }
    assert f"forces: {left_out}" in capsys.readouterr().out
    assert f"| forces |  |  | {left_out} |  |" in Path("card.md").read_text()
    code, rows = acceptance([salt], "--only", "forces")
    assert (code, rows[0]["met"], len(rows)) == (1, "no", 1)


def test_charged_molecules_are_compared_apart(training_modules, comparison, criteria):
    ends = [(0, 0, 0), (2, 0, 0)]
    charges = {"hydrogen": 0, "anion": -1, "cation": 1}
    molecules = [molecule_of(training_modules, x, "H2", ends, charge=q) for x, q in charges.items()]
    methods = comparison.Methods(Spring(2.0), Spring(1.0), ("H",), molecules)
    found = comparison.compare(criteria.ions, methods)
    assert [each.item for each in found] == ["anion", "cation"]
    expected = criteria.EV_TO_KCAL_PER_MOL / 3**0.5  # 1 eV/Å along one of three axes
    assert found[0].model == pytest.approx(expected, rel=0.1)
    (gap,) = comparison.compare(criteria.ions, replace(methods, is_neutral=True))
    assert gap == ("ions", "the model is for neutral molecules", False)


@pytest.mark.parametrize("option", ["--molecules", "--liquid-picoseconds"])
def test_sizes_are_above_0(training_modules, monkeypatch, capsys, option):
    monkeypatch.setattr("sys.argv", ["acceptance.py", "--teacher", "none.jpt", option, "0"])
    with pytest.raises(SystemExit):
        training_modules("acceptance").main()
    assert f"{option} must be above 0" in capsys.readouterr().err


def test_simulations_have_the_sizes_of_options(acceptance, training_modules, monkeypatch):
    """The model knows one of two drugs, and a droplet."""
    monkeypatch.setattr(training_modules("lasting"), "DRUGS", ("methane", "chloromethane"))
    structures = []
    for name, formula in (("methane", "CH4"), ("chloromethane", "CH3Cl")):
        atoms = molecule(formula)
        carbon = molecule_of(training_modules, name, atoms.symbols, atoms.positions)
        bonds = tuple((0, k) for k in range(1, 5))
        structures.append(replace(carbon, bonds=bonds))
    sizes = ("--picoseconds", "0.005", "--droplet", "2", "--waters", "8")
    names = "drugs", "droplet", "water"
    words = ("--only", *names, *sizes, "--liquid-picoseconds", "0.01", "--runs", "here")
    code, rows = acceptance(structures, *words)
    assert code == 1  # water has not relaxed yet
    found = {(row["check"], row["item"]): row for row in rows}
    for item in ("methane", "2 molecules of water"):
        assert found["intact", item]["model"] == found["intact", item]["reference"] == "0.01"
        assert ("drift", item) in found
    assert found["intact", "largest"]["met"] == "yes"
    assert ("water, density", "8 molecules") in found
    assert ("drugs", "left out: chloromethane; the model does not know Cl") in found
    assert sorted(path.name for path in Path("here").iterdir()) == sorted(names)


def test_cells_have_the_coulomb_energy_of_all_images(acceptance, training_modules, monkeypatch):
    model = TensorNet2(TensorNet2Config(elements=(1, 8), hidden_channels=8))
    save_model(model, "charged.safetensors")

    def looks(methods):
        box = water_box(8)
        methods.simulated_in_cells.get_potential_energy(box)
        with pytest.raises(InputError, match="all pairs"):
            methods.simulated.get_potential_energy(box)
        yield training_modules("comparison").Finding("water", "none", "", 1.0, 1.0)

    monkeypatch.setitem(training_modules("acceptance").CHECKS, "water", looks)
    h2 = molecule_of(training_modules, "hydrogen", "H2", [(0, 0, 0), (0.74, 0, 0)])
    code, _ = acceptance([h2], "--only", "water", "--model", "charged.safetensors")
    assert code == 0


def test_an_error_ends_a_check_and_no_other(comparison, verdict):
    def fails(_):
        yield comparison.Finding("first", "it", "eV", 1.0, 1.0)
        raise InputError("nothing more")

    found = comparison.compare(fails, comparison.Methods(None, None, (), []))
    (gap,) = verdict.gaps(found)
    assert gap == ("fails", "stopped: nothing more", True)
    assert len(verdict.misses(list(verdict.rows(found)))) == 1


def test_a_card_has_means_limits_and_gaps(comparison, verdict):
    results = [
        comparison.Finding("hydrogen bonds", "a", "kcal/mol", 1.0, 0.5),
        comparison.Finding("hydrogen bonds", "b", "kcal/mol", 1.0, 1.1),
        comparison.Finding("uncertainty", "c", "%", math.nan, 0.0),
        comparison.Finding("other", "d", "", 2.0, 1.0),
        comparison.Gap("drugs", "left out: a|b", is_missed=False),
    ]
    assert verdict.card(results).splitlines() == [
        "| check | mean | largest | limit |  |",
        "| --- | ---: | ---: | --- | --- |",
        "| hydrogen bonds | 0.3 kcal/mol | 0.5 kcal/mol | mean 0.8, largest 1.5 | met |",
        "| uncertainty | nan % | nan % | largest 10 | missed |",
        "| other | 1 | 1 |  |  |",
        "| drugs |  |  | left out: a\\|b |  |",
    ]


class Doubtful(Spring):
    """A spring that doubts structures of some elements."""

    implemented_properties = (*Spring.implemented_properties, "uncertainty")
    doubted = 17, 35

    def calculate(self, *args, **options):
        super().calculate(*args, **options)
        doubts = np.isin(self.atoms.numbers, self.doubted).any()
        self.results["uncertainty"] = np.full(len(self.atoms), 0.9 if doubts else 0.1)


def test_molecules_with_large_errors_are_to_be_flagged(training_modules, comparison, criteria):
    known = "H2", "HF", "HCl", "HBr", "HI"
    molecules = [molecule_of(training_modules, x, x, [(0, 0, 0), (2, 0, 0)]) for x in known]
    molecules.append(
        molecule_of(training_modules, "LiH", "LiH", [(0, 0, 0), (9, 0, 0)], split="train")
    )
    symbols = "H", "F", "Cl", "Br", "I", "Li"

    def judged(teacher, limit=0.5, count=9):
        chosen = {"limit": limit, "sizes": comparison.Sizes(molecules=count)}
        methods = comparison.Methods(Doubtful(1.0), teacher, symbols, molecules, **chosen)
        return comparison.compare(criteria.uncertainty, methods)

    bad, good = judged(HeavyHalogens(1.0))
    assert (bad.item, bad.reference) == ("badly described, 2 of 3 flagged", 100)
    assert bad.model == pytest.approx(200 / 3)
    assert (good.item, good.model, good.reference) == ("well described, 0 of 2 flagged", 0, 0)
    bad, good = judged(HeavyHalogens(1.0), limit=0.05)
    assert (bad.model, good.model) == (100, 100)
    gap, good = judged(Spring(1.0))
    assert gap == ("uncertainty", "no molecule is badly described", False)
    assert good.item == "well described, 2 of 5 flagged"
    assert judged(Spring(1.0), count=2)[1].item == "well described, 1 of 2 flagged"


class HeavyHalogens(Spring):
    """A stiffer spring between atoms of which one is heavier than fluorine."""

    def calculate(self, *args, **options):
        super().calculate(*args, **options)
        self.results["forces"] *= 1.0 + (self.atoms.numbers.max() > 9)
