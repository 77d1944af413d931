"""The comparisons of `examples/training/acceptance.py`, by potentials whose answers are known."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes


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
def criteria(training_modules):
    return training_modules("criteria")


@pytest.fixture
def acceptance(training_modules):
    return training_modules("acceptance")


@pytest.mark.parametrize("constant", [5.0, 36.0])
def test_frequency_of_a_spring(criteria, constant):
    """One eV/Å²/u is 9.82269e27 / s², whose root is 521.47 / cm."""
    atoms = Atoms("HF", [(0, 0, 0), (0, 0, 1.0)])
    a, b = atoms.get_masses()
    found = criteria.frequencies(atoms, Spring(constant))
    expected = math.sqrt(constant * (1 / a + 1 / b) * 9.64853322e27) / (2 * math.pi * 2.99792458e10)
    assert found == pytest.approx([expected], rel=1e-3)


def test_only_repelling_pairs_pass_as_walls(criteria, acceptance):
    for constant, is_missed in ((4.0, False), (-4.0, True)):
        methods = criteria.Methods(Spring(constant, 3.0), Spring(1.0), ("H", "Cl"), [])
        found = list(criteria.walls(methods))
        assert [each.item for each in found] == ["H-H", "H-Cl", "Cl-Cl"]
        assert bool(acceptance.misses(list(acceptance.rows(found)))) is is_missed


def test_energies_that_do_not_add_up_are_missed(criteria, acceptance):
    methods = criteria.Methods(Spring(1.0), Spring(1.0), ("H", "C"), [])
    found = list(criteria.atoms_alone(methods))
    assert found[0].model == pytest.approx(0.5 * (criteria.FAR - 1) ** 2)
    assert acceptance.misses(list(acceptance.rows(found)))


@pytest.mark.parametrize(("model", "count"), [(2.0, 0), (2.9, 0), (4.0, 2), (math.nan, 2)])
def test_rows_above_a_limit_are_misses(criteria, acceptance, model, count):
    found = [criteria.Finding("hydrogen bonds", "dimer", "kcal/mol", model, 2.0)]
    found.append(found[0]._replace(item="other", model=2.1))
    table = list(acceptance.rows(found))
    assert [row[1] for row in table] == ["dimer", "other", "mean", "largest"]
    assert len(acceptance.misses(table)) == count


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


def test_the_shipped_model_misses_what_it_never_learned(
    acceptance, training_modules, tmp_path, monkeypatch, capsys
):
    teacher, out = tmp_path / "teacher.jpt", tmp_path / "table.csv"
    torch.jit.script(Tight()).save(str(teacher))
    conformers = tmp_path / "conformers.npz"
    hydrogen = training_modules("geometry").Structure(
        name="hydrogen",
        conformer=0,
        group="fragment",
        split="train",
        numbers=np.array([1, 1]),
        positions=np.array([[0, 0, 0], [0.74, 0, 0]]),
        bonds=((0, 1),),
    )
    training_modules("conformers").save_structures(conformers, [hydrogen])
    words = ["acceptance.py", "--teacher", str(teacher), "--conformers", str(conformers)]
    words += ["--checks", "hydrogen", "atoms_alone", "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as end:
        acceptance.main()
    assert end.value.code == 1
    assert "H2, largest" in capsys.readouterr().out
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["check"] == "additive"
    assert float(rows[-1]["error"]) > float(rows[-1]["limit"])
