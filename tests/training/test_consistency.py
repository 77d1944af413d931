"""Energies that contradict forces are refused before training, and right labels never are."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache

import ase.io
import numpy as np
import pytest
from ase.build import molecule

from mlff_triton import TensorNetCalculator
from mlff_triton.errors import InputError
from mlff_triton.training import close_pairs as pairs_module
from mlff_triton.training.close_pairs import close_pairs
from mlff_triton.training.consistency import check_consistent, fit_slope
from mlff_triton.training.frames import Frames
from mlff_triton.training.labels import Labels, parse_keys
from mlff_triton.training.sources import read_frames
from mlff_triton.units import BOHR, EV_TO_KCAL_PER_MOL, EV_TO_KJ_PER_MOL, HARTREE
from tests.support.labeled import labeled
from tests.support.trajectories import (
    CLEAR,
    UNCLEAR,
    Images,
    dynamics,
    labeled_copy,
    rattled,
    scaled,
    shuffled,
)

WRONG = {  # factors of right energies and forces, and the options that mend them
    "gradients": (1, -1, "--key forces=-forces"),
    "kcal/mol, eV/Å": (EV_TO_KCAL_PER_MOL, 1, "--energy-unit kcal/mol --force-unit eV/A"),
    "kJ/mol, eV/Å": (EV_TO_KJ_PER_MOL, 1, "--energy-unit kJ/mol --force-unit eV/A"),
    "Hartree, eV/Å": (1 / HARTREE, 1, "--energy-unit Hartree --force-unit eV/A"),
    "eV, kcal/mol/Å": (1, EV_TO_KCAL_PER_MOL, "--force-unit kcal/mol/A"),
    "eV, kJ/mol/Å": (1, EV_TO_KJ_PER_MOL, "--force-unit kJ/mol/A"),
    "eV, Hartree/Å": (1, 1 / HARTREE, "--force-unit Hartree/A"),
    "eV, Hartree/Bohr": (1, BOHR / HARTREE, "--force-unit Hartree/Bohr"),
    "Hartree, Hartree/Bohr": (
        *(1 / HARTREE, BOHR / HARTREE),
        "--energy-unit Hartree --force-unit Hartree/Bohr",
    ),
    "kJ/mol, kJ/mol/nm": (
        *(EV_TO_KJ_PER_MOL, 10 * EV_TO_KJ_PER_MOL),
        "--energy-unit kJ/mol --force-unit kJ/mol/nm",
    ),
    "gradients in Hartree/Bohr": (
        *(1 / HARTREE, -BOHR / HARTREE),
        "--key forces=-forces --energy-unit Hartree --force-unit Hartree/Bohr",
    ),
}


@cache
def images_of(kind: str) -> Images:
    return (CLEAR | UNCLEAR)[kind]()


def ethane() -> Images:
    return images_of("frames")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(images: Images, labels: Labels = Labels(), name: str = "data.traj"):  # noqa: B008
    ase.io.write(name, images)
    return read_frames([name], labels)


def check(images: Images, labels: Labels = Labels()) -> None:  # noqa: B008
    check_consistent(read(images, labels), labels)


def check_scaled(frames: Frames, energy: float, forces: float) -> None:
    """Check structures whose labels are multiplied by factors."""
    wrong = replace(frames, energy=energy * frames.energy, forces=forces * frames.forces)
    check_consistent(wrong, Labels())


@pytest.mark.parametrize("kind", CLEAR)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_labels_are_refused_with_what_mends_them(kind, wrong):
    frames = read(images_of(kind))
    check_consistent(frames, Labels())
    energy, forces, options = WRONG[wrong]
    with pytest.raises(InputError, match="energies contradict forces") as error:
        check_scaled(frames, energy, forces)
    assert str(error.value).endswith(f": if so, use {options}")
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore::mlff_triton.UnknownChemistryWarning")  # of rattled atoms
@pytest.mark.parametrize("size", [0.05, 0.06])
def test_gradients_of_anharmonic_structures_are_recognized(size):
    images = rattled(molecule("CH3OH"), TensorNetCalculator(device="cpu"), size)
    check(images)
    with pytest.raises(InputError, match=r"as if forces were gradients: if so, use --key forces="):
        check(scaled(images, 1, -1))


@pytest.mark.parametrize("kind", UNCLEAR)
def test_nothing_is_said_without_evidence(kind):
    frames = read(images_of(kind))
    check_consistent(frames, Labels())
    for energy, forces, _ in WRONG.values():
        check_scaled(frames, energy, forces)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_structures_of_other_atoms_or_cells_are_not_compared(periodic, seed):
    images = labeled(40, periodic=periodic, seed=seed)
    check(images)
    check(scaled(images, 1, -1))


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_evidence(seed):
    """Energies are unrelated to forces, or hide them."""
    rng = np.random.default_rng(seed)
    images = images_of("displaced molecules")
    spread = np.std([atoms.get_potential_energy() for atoms in images])
    for size in (1, 3, 100):
        noise = rng.normal(scale=size * spread, size=len(images))
        energies = [a.get_potential_energy() for a in images] + noise
        check([labeled_copy(a, e) for a, e in zip(images, energies, strict=True)])


def test_energies_per_atom_are_named():
    images = [labeled_copy(a, a.get_potential_energy() / len(a)) for a in ethane()]
    with pytest.raises(InputError, match="as if energies were per atom: multiply them by"):
        check(images)


def test_factors_that_no_units_have_are_refused():
    with pytest.raises(InputError, match="by 300 times what forces say, which no units explain"):
        check_scaled(read(images_of("a scan")), 300, 1)


def test_the_remedy_begins_with_the_given_options():
    hartree = scaled(ethane(), 1 / HARTREE, BOHR / HARTREE)
    with pytest.raises(InputError, match=r": if so, use --force-unit Hartree/Bohr$"):
        check(hartree, Labels(energy_unit="Hartree"))
    check(hartree, Labels(energy_unit="Hartree", force_unit="Hartree/Bohr"))
    with pytest.raises(InputError, match=r": if so, use --key forces=forces$"):
        check(ethane(), Labels(parse_keys(["forces=-forces"])))
    with pytest.raises(InputError, match=r"use --key forces=-forces$"):
        check(scaled(ethane(), 1, -1), Labels(parse_keys(["forces=forces"])))
    frames = read(ethane())
    with pytest.raises(InputError, match="positions were in Bohr.* use --length-unit Bohr --force"):  # noqa: RUF043
        check_consistent(replace(frames, positions=frames.positions / BOHR), Labels())


@pytest.mark.parametrize("wrong", ["gradients", "kcal/mol, eV/Å", "Hartree, Hartree/Bohr"])
def test_one_wrong_file_or_group_among_right_ones_is_found(wrong):
    energy, forces, options = WRONG[wrong]
    kinds = ("relaxations", "frames in random order", "displaced molecules")
    right = [atoms for kind in kinds for atoms in images_of(kind)]
    bad = scaled(images_of("displaced crystals"), energy, forces)
    ase.io.write("right.traj", right)
    ase.io.write("bad.traj", bad)
    frames = read_frames(["right.traj", "bad.traj"], Labels())
    with pytest.raises(InputError, match=r"from bad\.traj, frame .* to bad\.traj, frame") as error:
        check_consistent(frames, Labels())
    assert str(error.value).endswith(options)
    mixed = shuffled(right + bad)
    with pytest.raises(InputError, match="energies contradict forces") as error:
        check(mixed)  # the crystals are one group by their formula
    assert str(error.value).endswith(options)


def test_wrong_structures_among_a_multitude_are_found(monkeypatch):
    """Of many structures, blocks are compared, from all files and groups."""
    monkeypatch.setattr(pairs_module, "MOST_FRAMES", 256)
    kinds = [kind for kind in CLEAR if kind != "float32"]  # whose energies are far from others
    many = [atoms for kind in kinds for atoms in images_of(kind)] * 3
    frames = read(many)
    file = np.zeros(len(frames), dtype=np.int64)
    found = close_pairs(frames, file)
    assert 30 < len(found) < 2 * 256
    assert fit_slope(found).is_clear
    with pytest.raises(InputError, match="energies contradict forces"):
        check_scaled(frames, 1, -1)


def test_pairs_are_those_of_the_definition():
    """Each pair is checked one by one, and none of close consecutive structures is missing."""
    images = images_of("alternating cells") + images_of("displaced crystals, atoms in the cell")
    frames = read(images)
    found = close_pairs(frames, np.zeros(len(frames), dtype=np.int64))
    for k, (a, b) in enumerate(zip(found.first, found.second, strict=True)):
        one, two = images[a], images[b]
        assert np.allclose(one.cell.array, two.cell.array)
        fractions = (two.positions - one.positions) @ np.linalg.inv(one.cell.array)
        moved = (fractions - np.rint(fractions)) @ one.cell.array
        assert np.linalg.norm(moved, axis=1).max() <= pairs_module.LARGEST
        mean = (one.get_forces() + two.get_forces()) / 2
        assert np.isclose(found.work[k], -(mean * moved).sum())
        change = two.get_potential_energy() - one.get_potential_energy()
        assert np.isclose(found.change[k], change)
    pairs = set(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert {(k, k + 2) for k in range(0, 38, 2)} <= pairs  # in the same cell


def test_small_displacements_through_the_boundary_are_small():
    atoms = ethane()[0].copy()
    atoms.set_cell([[9, 0, 0], [4, 9, 0], [1, 2, 30]])
    atoms.pbc = (True, True, False)
    images = []
    for k in range(20):
        copy = atoms.copy()
        copy.positions += k * atoms.cell[0] - 2 * k * atoms.cell[1] + 0.01 * k
        images.append(labeled_copy(copy, -1.0, np.ones((len(atoms), 3))))
    found = close_pairs(read(images), np.zeros(20, dtype=np.int64))
    assert len(found) >= 19
    steps = found.second - found.first
    assert np.allclose(found.work, -3 * len(atoms) * 0.01 * steps)


def test_memory_is_that_of_a_sample():
    """Many structures take no more memory than some blocks of them, and a few numbers each."""
    rng = np.random.default_rng(0)
    count = 60_000
    np.savez(
        "data.npz",
        numbers=np.ones((count, 2)),
        positions=rng.normal(scale=0.05, size=(count, 2, 3)) + np.eye(2, 3),
        forces=rng.normal(size=(count, 2, 3)),
        energy=rng.normal(size=count),
    )
    frames = read_frames(["data.npz"], Labels())
    tracemalloc.start()
    check_consistent(frames, Labels())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1000 * count


def test_labels_of_the_shipped_model_are_right():
    calculator = TensorNetCalculator(device="cpu")
    images = dynamics(molecule("CH3CH2OH"), calculator, 800.0, 0.5, 4, count=20)
    check(images)
    with pytest.raises(InputError, match="as if forces were gradients"):
        check(scaled(images, 1, -1))
