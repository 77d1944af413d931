"""Crystals, water and long simulations of `examples/training/acceptance.py`."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import Calculator, all_changes
from ase.neighborlist import neighbor_list

from mlff_triton import TensorNetCalculator
from mlff_triton.dynamics import Settings, Stage, load_restart
from mlff_triton.dynamics.bonds import Bonds

pytestmark = pytest.mark.filterwarnings("ignore::mlff_triton.UnknownChemistryWarning")
TINY = {"waters": 8, "droplet": 3, "liquid_picoseconds": 0.02, "picoseconds": 0.01}


class Pushed(Calculator):
    """A spring between the first two atoms that breaks if one of them is fluorine."""

    implemented_properties = ("energy", "forces", "stress")

    def calculate(self, atoms=None, properties=None, system_changes=all_changes):
        super().calculate(atoms, properties, system_changes)
        forces, energy = np.zeros((len(self.atoms), 3)), 0.0
        if len(self.atoms) == 2:
            d = self.atoms.positions[1] - self.atoms.positions[0]
            r = np.linalg.norm(d)
            constant = -9.0 if 9 in self.atoms.numbers else 36.0
            energy = constant / 2 * (r - 0.74) ** 2
            forces[1] = -constant * (r - 0.74) * d / r
            forces[0] = -forces[1]
        self.results = {"energy": energy, "forces": forces, "stress": np.zeros(6)}


class Interrupted(Pushed):
    """The same, until somebody presses Ctrl-C."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def calculate(self, *args, **options):
        super().calculate(*args, **options)
        self.calls -= 1
        if not self.calls:
            raise KeyboardInterrupt


@pytest.fixture
def comparison(training_modules):
    return training_modules("comparison")


@pytest.fixture
def densities(training_modules):
    return training_modules("densities")


@pytest.fixture
def lasting(training_modules):
    return training_modules("lasting")


@pytest.fixture
def methods(comparison, tmp_path):
    """Return a function that makes methods of small sizes of a calculator."""

    def make(calculator, symbols=("H", "C", "N", "O", "F"), structures=(), **sizes):
        chosen = comparison.Sizes(**TINY | sizes, runs=tmp_path / "runs")
        return comparison.Methods(calculator, None, symbols, list(structures), sizes=chosen)

    return make


def structure_of(training_modules, name, formula):
    atoms = molecule(formula)
    return training_modules("geometry").Structure(
        name=name,
        conformer=0,
        group="held_out",
        split="test",
        numbers=atoms.numbers,
        positions=atoms.positions,
        bonds=tuple(map(tuple, Bonds.of([atoms]).pairs.tolist())),
    )


def test_crystals_at_rest_have_their_published_densities(comparison, densities, methods):
    found = comparison.compare(densities.crystals, methods(Pushed()))
    assert [each.item.split(",")[0] for each in found] == ["density of ice Ih", "density of urea"]
    assert [each.model for each in found] == pytest.approx([100, 100], abs=0.5)


def test_ice_obeys_its_rules(densities):
    ice = densities.ice()
    i, d = neighbor_list("id", ice, 1.2)
    assert np.bincount(i).tolist() == [2] * 32 + [1] * 64  # oxygen, then hydrogen
    assert d == pytest.approx(densities.OH)
    i, j = neighbor_list("ij", ice, 2.0)
    bonded = ice.numbers[i] != ice.numbers[j]
    assert np.bincount(i[bonded]).tolist() == [4] * 32 + [2] * 64
    pairs = [set(j[bonded & (i == hydrogen)].tolist()) for hydrogen in range(32, 96)]
    assert len(set(map(frozenset, pairs))) == 64  # one on each hydrogen bond


def test_molecules_of_urea_are_whole(densities):
    i, j = neighbor_list("ij", densities.urea(), 1.5)
    names = sorted(
        "".join(sorted(densities.urea().symbols[[a, b]]))
        for a, b in zip(i, j, strict=True)
        if a < b
    )
    assert names == ["CN"] * 4 + ["CO"] * 2 + ["HN"] * 8


def test_a_crystal_that_does_not_relax_is_missed(comparison, densities, methods, monkeypatch):
    monkeypatch.setattr(densities, "RELAXATION", 1)
    model = TensorNetCalculator(device="cpu")
    found = comparison.compare(densities.crystals, methods(model, ("H", "C", "O")))
    assert found == [
        ("crystals", "ice Ih is not relaxed after 1 steps", True),
        ("crystals", "left out: urea; the model does not know N", True),
    ]


def test_the_peak_of_known_distances(densities):
    """p(r) of a normal distribution gives V p(r) / (8 pi r^2), whose maximum is found by hand."""
    mean, width, side = 2.8, 0.1, 10.0
    shares = (np.arange(2000) + 0.5) / 2000
    distances = map(NormalDist(mean, width).inv_cdf, shares)
    frames = (
        Atoms("OOH", [(0, 0, 0), (0, 0, d), (5, 5, 5)], cell=3 * [side], pbc=True)
        for d in distances
    )
    expected = (mean + math.sqrt(mean**2 - 8 * width**2)) / 2
    density = NormalDist(mean, width).pdf(expected)
    position, height = densities.peak(frames)
    assert position == pytest.approx(expected, abs=2e-3)
    assert height == pytest.approx(side**3 * density / (8 * math.pi * expected**2), rel=0.01)


def test_water_is_simulated_and_goes_on(comparison, densities, methods, capsys):
    model = TensorNetCalculator(device="cpu")
    found = comparison.compare(densities.water, methods(model))
    assert [each.check for each in found] == [
        f"water, {x}" for x in ("density", "O-O distance", "O-O peak")
    ]
    assert found[0].model == pytest.approx(1.0, abs=0.1)
    assert densities.AROUND[0] < found[1].model < densities.AROUND[1]
    assert "0 of 44 steps are done" in capsys.readouterr().out
    assert comparison.compare(densities.water, methods(model)) == found
    assert "44 of 44 steps are done" in capsys.readouterr().out
    (gap,) = comparison.compare(densities.water, methods(model, waters=27))
    assert gap.is_missed
    assert "another model or other sizes: choose another --runs" in gap.reason


def test_an_interrupted_simulation_goes_on(training_modules, tmp_path):
    runs, atoms = training_modules("simulations"), Atoms("H2", [(0, 0, 0), (0.7, 0, 0)])
    settings = Settings((Stage("nvt", 30), Stage("nve", 30)), every=5)
    runs.simulate([atoms], Pushed(), settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        runs.simulate([atoms], Interrupted(44), settings, tmp_path / "parts")
    assert 5 < load_restart(tmp_path / "parts" / "restart.npz").state.step < 60
    runs.simulate([atoms], Pushed(), settings, tmp_path / "parts")
    for name in ("log.csv", "trajectory.xyz"):
        whole, parts = ((tmp_path / kind / name).read_bytes() for kind in ("whole", "parts"))
        assert whole == parts


def test_a_droplet_is_the_middle_of_a_box(lasting):
    drop = lasting.cut_droplet(10)
    assert str(drop.symbols) == "OH2" * 10
    assert not drop.pbc.any()
    pairs = lasting.ordered(Bonds.of([drop]).pairs.tolist())
    assert pairs == {(3 * k, 3 * k + n) for k in range(10) for n in (1, 2)}


def test_a_system_that_falls_apart_spoils_no_other(lasting, methods):
    systems = {
        name: lasting.Lasting(Atoms(name, [(0, 0, 0), (0.7, 0, 0)]), frozenset([(0, 1)]))
        for name in ("H2", "HF")
    }
    folder = methods(Pushed()).sizes.runs
    found = list(lasting.endured(methods(Pushed(), picoseconds=0.1), systems, 300.0, folder))
    assert [each.item for each in found] == ["H2", "H2", "HF", "HF"]
    assert (found[0].model, found[0].reference) == (0.2, 0.2)
    assert abs(found[1].model) < math.inf
    assert found[2].model < 0.2
    assert math.isnan(found[3].model)


def test_frames_count_until_a_bond_changes(lasting):
    whole = lasting.cut_droplet(2)
    for change in ("breaks", "moves on", "is new"):
        other = whole.copy()
        if change == "breaks":
            other.positions[1] += 4.0
        elif change == "moves on":
            other.positions[1] = other.positions[3] + [0.6, 0.6, 0.6]
        else:
            other.positions[3:] += other.positions[0] - other.positions[3] + [1.4, 0, 0]
        frames = [whole.copy(), whole.copy(), other, whole.copy()]
        for step, frame in zip((0, 5, 10, 15), frames, strict=True):
            frame.info["step"] = step
        bonds = lasting.ordered(Bonds.of([whole]).pairs.tolist())
        assert lasting.last_intact(iter(frames), bonds) == 5
        assert lasting.last_intact(iter(frames[:2]), bonds) == 5
        assert lasting.last_intact(iter(()), bonds) == 0


def test_a_drift_is_a_slope(lasting):
    times = np.linspace(3, 4, 50)
    energies = -7.0 + 2e-6 * times + 1e-9 * (-1) ** np.arange(50)
    assert lasting.drift(np.stack([times, energies], 1)) == pytest.approx(2.0, rel=0.01)
    assert math.isnan(lasting.drift(np.empty((0, 2))))
    assert math.isnan(lasting.drift(np.array([[1.0, -7.0]])))


def test_drugs_that_are_unknown_or_missing_have_a_line(
    comparison, lasting, methods, training_modules, monkeypatch
):
    monkeypatch.setattr(lasting, "DRUGS", ("water", "chloromethane", "elixir"))
    structures = [
        structure_of(training_modules, name, formula)
        for name, formula in (("water", "H2O"), ("chloromethane", "CH3Cl"), ("methane", "CH4"))
    ]
    chosen = methods(TensorNetCalculator(device="cpu"), structures=structures)
    missing, intact, drift, left_out = comparison.compare(lasting.drugs, chosen)
    assert missing == ("drugs", "missing in the file of conformers: elixir", True)
    assert (intact.item, intact.model, intact.reference) == ("water", 0.02, 0.02)
    assert drift.item == "water"
    assert abs(drift.model) < math.inf
    reason = "left out: chloromethane; the model does not know Cl"
    assert left_out == ("drugs", reason, False)
