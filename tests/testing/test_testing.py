"""The testing tools themselves: sound calculators pass every check, broken ones fail theirs."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.neighborlist import neighbor_list
from ase.stress import full_3x3_to_voigt_6_stress

from mlff_triton.errors import InputError
from mlff_triton.testing import (
    CHECKS,
    Case,
    ConformanceError,
    NotApplicable,
    assert_close,
    check_calculator,
    finite_difference_forces,
    finite_strain_stress,
    random_cluster,
    random_crystal,
    random_rotation,
    tolerance,
    water_box,
)

CUTOFF = 4.0


class Reference(Calculator):
    """A sound potential of pairs: ``sqrt(Z_i Z_j) / 8 (1 - d^2 / c^2)^4 (1 + q / 10)`` eV."""

    implemented_properties = ["energy", "free_energy", "energies", "forces", "stress"]  # noqa: RUF012
    precision = np.float64

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        changes = super().check_state(atoms, tol)
        if self.atoms is not None and self.atoms.info.get("charge") != atoms.info.get("charge"):
            changes.append("charge")
        return changes

    def calculate(
        self, atoms: Atoms, properties: Any = ("energy",), system_changes: Any = all_changes
    ) -> None:
        self.refuse(atoms)
        super().calculate(atoms, properties, system_changes)
        self.results = self.evaluate(atoms)

    def refuse(self, atoms: Atoms) -> None:
        if len(atoms) == 0 or not np.isfinite(atoms.positions).all():
            raise ValueError("no such atoms")

    def evaluate(self, atoms: Atoms) -> dict[str, Any]:
        i, j, vectors = neighbor_list("ijD", atoms, CUTOFF)
        vectors = vectors.astype(self.precision)
        strength = np.sqrt(atoms.numbers[i] * atoms.numbers[j]) / 8
        strength *= 1 + 0.1 * atoms.info.get("charge", 0)
        inside = 1 - (vectors**2).sum(axis=1) / self.precision(CUTOFF**2)
        pushes = (-8 * strength * inside**3 / CUTOFF**2)[:, None] * vectors
        energies, forces = np.zeros(len(atoms)), np.zeros((len(atoms), 3))
        np.add.at(energies, i, 0.5 * strength * inside**4)
        np.add.at(forces, i, pushes)
        energy = float(energies.sum())
        results = {"energy": energy, "free_energy": energy, "energies": energies, "forces": forces}
        if atoms.cell.rank == 3:
            stress = 0.5 * vectors.T @ pushes / atoms.get_volume()
            results["stress"] = full_3x3_to_voigt_6_stress(stress)
        return results


class ArrayEnergy(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": np.array([results["energy"]])}


class InfiniteEnergy(Reference):
    def evaluate(self, atoms):
        return super().evaluate(atoms) | {"energy": float("inf")}


class EnergyOfAllPairs(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-6 * len(atoms) ** 2}


class ForcesOfWrongSign(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": -results["forces"]}


class ForcesSlightlyScaled(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": results["forces"] * 1.00001}


class NetForce(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": results["forces"] + 1e-4}


class StressOfWrongSign(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": -results["stress"]}


class StressInLexicalOrder(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": results["stress"][[0, 1, 2, 5, 4, 3]]}


class StressOfEngineeringShear(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": results["stress"] * [1, 1, 1, 2, 2, 2]}


class VirialForStress(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": results["stress"] * atoms.get_volume()}


class NoStress(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        results.pop("stress", None)
        return results


class StressInVacuum(Reference):
    def evaluate(self, atoms):
        return {"stress": np.zeros(6)} | super().evaluate(atoms)


class AtomEnergiesOfWholePairs(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energies": 2 * results["energies"]}


class OneAtomEnergy(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energies": np.array([results["energy"]])}


class FreeEnergyWithEntropy(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"free_energy": results["energy"] - 1e-3}


class Anisotropic(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": results["forces"] * [1, 1, 1 + 1e-6]}


class StressThatDoesNotTurn(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"stress": results["stress"] * [1, 1, 1, 1, 1, 1 + 1e-6]}


class TiedToTheOrigin(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-9 * atoms.positions[:, 0].sum()}


class ForcesInOrderOfHeight(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"forces": results["forces"][np.argsort(atoms.positions[:, 2])]}


class FirstAtomSpecial(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-6 * atoms.numbers[0]}


class WithoutImages(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        outside = np.floor(atoms.cell.scaled_positions(atoms.positions)) @ atoms.pbc
        return results | {"energy": results["energy"] + 1e-6 * outside.sum()}


class NeverCached(Reference):
    def check_state(self, atoms, tol=1e-15):  # noqa: ARG002
        return list(all_changes)


class BlindToPositions(Reference):
    ignored_changes = {"positions"}  # noqa: RUF012


class BlindToSmallMoves(Reference):
    def check_state(self, atoms, tol=1e-15):  # noqa: ARG002
        return super().check_state(atoms, tol=1e-4)


class BlindToNumbers(Reference):
    ignored_changes = {"numbers"}  # noqa: RUF012


class BlindToCell(Reference):
    ignored_changes = {"cell"}  # noqa: RUF012


class BlindToPeriodicity(Reference):
    ignored_changes = {"pbc"}  # noqa: RUF012


class BlindToCharge(Reference):
    def check_state(self, atoms, tol=1e-15):
        return Calculator.check_state(self, atoms, tol)


class KeepsFirstNumbers(Reference):
    def evaluate(self, atoms):
        vars(self).setdefault("numbers", atoms.numbers.copy())
        known = atoms.copy()
        known.numbers[:] = self.numbers[: len(atoms)]
        return super().evaluate(known)


class Drifting(Reference):
    n_served = 0

    def evaluate(self, atoms):
        self.n_served += 1
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-12 * self.n_served}


class GivesAwayItsCache(Reference):
    def get_property(self, name, atoms=None, allow_calculation=True):
        super().get_property(name, atoms, allow_calculation)
        return self.results[name]


class OneBuffer(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        buffer = vars(self).setdefault("buffer", np.zeros_like(results["forces"]))
        buffer[:] = results["forces"]
        return results | {"forces": buffer}


class Noisy(Reference):
    noise = itertools.count()

    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-12 * next(self.noise)}


class EnergyJumps(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        n_pairs = len(neighbor_list("i", atoms, CUTOFF))
        return results | {"energy": results["energy"] + 1e-6 * n_pairs}


class ForceJumps(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        i, vectors = neighbor_list("iD", atoms, CUTOFF)
        np.add.at(results["forces"], i, 1e-6 * vectors)
        return results


class WrapsPositions(Reference):
    def evaluate(self, atoms):
        atoms.positions += atoms.cell.array.sum(axis=0) + 1
        return super().evaluate(atoms)


class ShiftsCell(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        atoms.cell[0, 0] += 1.0
        return results


class OpensCell(Reference):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        atoms.pbc[2] = not atoms.pbc[2]
        return results


class LeavesANote(Reference):
    def evaluate(self, atoms):
        atoms.info["seen"] = True
        return super().evaluate(atoms)


class LeavesAnArray(Reference):
    def evaluate(self, atoms):
        atoms.set_array("seen", np.ones(len(atoms)))
        return super().evaluate(atoms)


class AnswersForNaN(Reference):
    def refuse(self, atoms):
        if len(atoms) == 0:
            raise ValueError("no atoms")

    def evaluate(self, atoms):
        sound = atoms.copy()
        sound.positions = np.nan_to_num(atoms.positions, posinf=0.0)
        return super().evaluate(sound)


class AnswersNaN(AnswersForNaN):
    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results if np.isfinite(atoms.positions).all() else results | {"energy": float("nan")}


class AnswersForInfinity(AnswersForNaN):
    def refuse(self, atoms):
        super().refuse(atoms)
        if np.isnan(atoms.positions).any():
            raise ValueError("NaN")


class SpoiltByAnError(Reference):
    def refuse(self, atoms):
        try:
            super().refuse(atoms)
        except ValueError:
            self.spoilt = True
            raise

    def evaluate(self, atoms):
        results = super().evaluate(atoms)
        return results | {"energy": results["energy"] + 1e-9 * hasattr(self, "spoilt")}


class AnswersForNothing(Reference):
    def refuse(self, atoms):
        if len(atoms):
            super().refuse(atoms)

    def evaluate(self, atoms):
        if not len(atoms):
            return {"energy": 0.0}
        return super().evaluate(atoms)


BROKEN: dict[str, tuple[type[Reference], ...]] = {
    "energy_is_a_float": (ArrayEnergy, InfiniteEnergy),
    "energy_is_extensive": (EnergyOfAllPairs,),
    "forces_match_energy": (ForcesOfWrongSign, ForcesSlightlyScaled, ForcesInOrderOfHeight),
    "forces_sum_to_zero": (NetForce,),
    "stress_matches_energy": (
        StressOfWrongSign,
        StressInLexicalOrder,
        StressOfEngineeringShear,
        VirialForStress,
        NoStress,
    ),
    "stress_needs_a_cell": (StressInVacuum,),
    "atom_energies_add_up": (AtomEnergiesOfWholePairs, OneAtomEnergy),
    "free_energy_is_energy": (FreeEnergyWithEntropy,),
    "rotation_turns_results": (Anisotropic, StressThatDoesNotTurn),
    "translation_changes_nothing": (TiedToTheOrigin,),
    "permutation_permutes_results": (ForcesInOrderOfHeight, FirstAtomSpecial),
    "images_are_the_same": (WithoutImages,),
    "results_are_cached": (NeverCached,),
    "changes_are_noticed": (
        BlindToPositions,
        BlindToSmallMoves,
        BlindToNumbers,
        BlindToCell,
        BlindToPeriodicity,
        BlindToCharge,
        KeepsFirstNumbers,
    ),
    "other_atoms_leave_no_trace": (Drifting, BlindToPositions),
    "returned_arrays_are_copies": (GivesAwayItsCache,),
    "old_results_survive": (OneBuffer,),
    "new_calculators_agree": (Noisy,),
    "cutoff_is_smooth": (EnergyJumps, ForceJumps),
    "atoms_are_not_modified": (WrapsPositions, ShiftsCell, OpensCell, LeavesANote, LeavesAnArray),
    "nan_is_refused": (AnswersForNaN, AnswersNaN, AnswersForInfinity, SpoiltByAnError),
    "empty_is_refused": (AnswersForNothing,),
}

STRUCTURES = {
    "cluster": random_cluster(6),
    "single atom": random_cluster(1),
    "single atom in a small cell": random_crystal(1),
    **{kind: random_crystal(6, kind) for kind in ("cubic", "triclinic", "small", "slab", "rod")},
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_sound_calculator_passes(structure, name):
    with suppress(NotApplicable):
        CHECKS[name](Case(Reference, STRUCTURES[structure], cutoff=CUTOFF))


@pytest.mark.parametrize(
    ("name", "broken"), [(name, broken) for name, classes in BROKEN.items() for broken in classes]
)
def test_broken_calculator_fails_its_check(name, broken):
    case = Case(broken, STRUCTURES["triclinic"], cutoff=CUTOFF)
    with pytest.raises(AssertionError):
        CHECKS[name](case)


def test_every_check_is_seen_to_fail():
    assert BROKEN.keys() == CHECKS.keys()


def test_all_failures_are_reported_by_name():
    class Broken(NetForce, FreeEnergyWithEntropy, AnswersForNaN):
        pass

    with pytest.raises(ConformanceError, match="forces_sum_to_zero: AssertionError: ") as caught:
        check_calculator(Broken, STRUCTURES["triclinic"])
    expected = {
        "forces_match_energy",
        "forces_sum_to_zero",
        "free_energy_is_energy",
        "rotation_turns_results",  # the net force does not turn
        "nan_is_refused",
    }
    assert caught.value.failures.keys() == expected


def test_a_crash_is_a_failure_of_each_check():
    class Crashing(Reference):
        def evaluate(self, atoms):  # noqa: ARG002
            raise ZeroDivisionError("crash")

    with pytest.raises(ConformanceError) as caught:
        check_calculator(Crashing, STRUCTURES["triclinic"], cutoff=CUTOFF)
    assert caught.value.failures.keys() == CHECKS.keys() - {"empty_is_refused"}
    assert caught.value.failures["nan_is_refused"] == "ZeroDivisionError: crash"


def test_outcomes_say_what_was_not_checked():
    outcomes = check_calculator(Reference, STRUCTURES["cluster"], skip=["empty_is_refused"])
    assert outcomes.keys() == CHECKS.keys()
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "passed"} == {
        "stress_matches_energy": "the atoms are not periodic",
        "images_are_the_same": "the atoms are not periodic",
        "cutoff_is_smooth": "no cutoff was given",
        "empty_is_refused": "skipped",
    }


def test_properties_that_a_calculator_lacks_are_not_checked():
    class EnergyAndForces(Reference):
        implemented_properties = ["energy", "forces"]  # noqa: RUF012

    outcomes = check_calculator(EnergyAndForces, STRUCTURES["triclinic"], cutoff=CUTOFF)
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "passed"} == {
        "stress_matches_energy": "the calculator has no stress",
        "stress_needs_a_cell": "the calculator has no stress",
        "atom_energies_add_up": "the calculator has no energies",
        "free_energy_is_energy": "the calculator has no free_energy",
    }


def test_partly_periodic_atoms_need_no_stress():
    case = Case(NoStress, STRUCTURES["slab"])
    with pytest.raises(NotApplicable, match="no stress for partly periodic"):
        CHECKS["stress_matches_energy"](case)


@pytest.mark.parametrize("structure", ["cluster", "triclinic", "slab"])
def test_lennard_jones_conforms(structure):
    not_refused = ["nan_is_refused", "empty_is_refused"]
    check_calculator(
        lambda: LennardJones(sigma=1.2, ro=2.4, rc=3.6, smooth=True),
        STRUCTURES[structure],
        cutoff=3.6,
        skip=not_refused,
    )


def test_lennard_jones_without_smoothing_has_a_force_jump():
    with pytest.raises(ConformanceError, match="the force jumps") as caught:
        check_calculator(
            lambda: LennardJones(sigma=1.2, rc=3.6),
            STRUCTURES["triclinic"],
            cutoff=3.6,
            skip=["nan_is_refused", "empty_is_refused"],
        )
    assert [*caught.value.failures] == ["cutoff_is_smooth"]


def test_emt_overwrites_the_arrays_that_it_gave():
    copper = random_crystal(4, elements=["Cu", "Au"], min_distance=2.2)
    with pytest.raises(ConformanceError) as caught:
        check_calculator(EMT, copper, skip=["nan_is_refused", "empty_is_refused"])
    assert [*caught.value.failures] == ["old_results_survive"]


@pytest.mark.parametrize("structure", ["cluster", "triclinic"])
def test_single_precision_passes_at_its_own_tolerance_only(structure):
    class Single(Reference):
        precision = np.float32

    check_calculator(Single, STRUCTURES[structure], dtype="float32", cutoff=CUTOFF)
    with pytest.raises(ConformanceError, match="rotation_turns_results"):
        check_calculator(Single, STRUCTURES[structure], cutoff=CUTOFF)


def test_structure_is_left_alone():
    atoms = random_crystal(4)
    before = atoms.copy()
    check_calculator(Reference, atoms, cutoff=CUTOFF)
    assert atoms == before
    assert atoms.info == before.info


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="no checks"):
        check_calculator(Reference, STRUCTURES["cluster"], skip=["forces"])
    with pytest.raises(InputError, match="float16"):
        check_calculator(Reference, STRUCTURES["cluster"], dtype="float16")


@pytest.mark.parametrize("dtype", ["float32", "float64", torch.float32, torch.float64])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_tolerance_separates_close_from_far(dtype, order):
    expected = torch.tensor([[3.0, -50.0], [1e-9, 0.0]], dtype=torch.float64)
    assert_close(expected + 0.9 * 50 * tolerance(order, dtype), expected, order, dtype)
    with pytest.raises(AssertionError, match=r"at \[\d, \d\]"):
        assert_close(expected - 1.1 * 50 * tolerance(order, dtype), expected, order, dtype)


def test_tolerances_grow_with_order_and_shrink_with_precision():
    for order in range(3):
        assert tolerance(order, "float64") < tolerance(order, "float32")
    for dtype in ("float32", "float64"):
        assert tolerance(0, dtype) < tolerance(1, dtype) < tolerance(2, dtype)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_close_to_nothing(bad):
    for actual, expected in (([bad, 1.0], [0.0, 1.0]), ([0.0], [bad]), ([bad], [bad])):
        with pytest.raises(AssertionError, match="NaN or infinity"):
            assert_close(actual, expected, 2, "float32", floor=1e300)


def test_shapes_must_agree():
    with pytest.raises(AssertionError, match="shape"):
        assert_close(np.zeros((2, 1)), np.zeros(2), 0)
    assert_close(np.zeros((0, 3)), torch.zeros(0, 3), 0)


def test_zero_is_exact_unless_a_floor_says_what_is_large():
    with pytest.raises(AssertionError):
        assert_close([1e-15], [0.0], 1)
    assert_close([1e-15], [0.0], 1, floor=1.0)


@pytest.mark.parametrize(("order", "dtype"), [(3, "float64"), (-1, "float64"), (0, "int64")])
def test_no_tolerance_is_invented(order, dtype):
    with pytest.raises(InputError):
        tolerance(order, dtype)


@pytest.mark.parametrize("n_atoms", [1, 2, 63])
def test_clusters_are_seeded_and_not_too_dense(n_atoms):
    atoms = random_cluster(n_atoms, ["O", "H"], seed=3, min_distance=0.9)
    assert atoms == random_cluster(n_atoms, ["O", "H"], seed=3, min_distance=0.9)
    assert len(atoms) == n_atoms
    assert not atoms.pbc.any()
    assert len(neighbor_list("i", atoms, 0.9)) == 0
    assert n_atoms == 1 or set(atoms.symbols) == {"O", "H"}
    assert not np.array_equal(random_cluster(n_atoms, seed=4).positions, atoms.positions)


@pytest.mark.parametrize("kind", ["cubic", "triclinic", "small", "slab", "rod"])
@pytest.mark.parametrize("n_atoms", [1, 20])
def test_crystals_are_seeded_and_not_too_dense(kind, n_atoms):
    atoms = random_crystal(n_atoms, kind, seed=3)
    assert atoms == random_crystal(n_atoms, kind, seed=3)
    assert len(atoms) == n_atoms
    assert len(neighbor_list("i", atoms, 1.2)) == 0
    assert atoms.get_volume() == pytest.approx(4 * n_atoms * 1.2**3)
    heights = 1 / np.linalg.norm(np.linalg.inv(atoms.cell.array), axis=0)
    assert kind != "small" or heights.min() <= 1.8 + 1e-9


def test_unknown_crystals_are_refused():
    with pytest.raises(InputError, match="cubic, triclinic"):
        random_crystal(2, "hexagonal")


@pytest.mark.parametrize("n_molecules", [1, 8, 11, 64])
def test_water_is_water(n_molecules):
    atoms = water_box(n_molecules)
    assert atoms.get_chemical_symbols() == ["O", "H", "H"] * n_molecules
    oxygens, hydrogens = atoms.positions[::3], atoms.positions.reshape(-1, 3, 3)[:, 1:]
    bonds = hydrogens - oxygens[:, None]
    assert np.linalg.norm(bonds, axis=-1) == pytest.approx(0.9572)
    cosines = (bonds[:, 0] * bonds[:, 1]).sum(axis=-1) / 0.9572**2
    assert np.degrees(np.arccos(cosines)) == pytest.approx(104.52)
    assert len(neighbor_list("i", atoms, 1.1)) == 4 * n_molecules  # bonds, and nothing else


def test_water_has_its_density():
    atoms = water_box(64)
    grams_per_mole, per_mole = atoms.get_masses().sum(), 6.02214076e23
    density = grams_per_mole / per_mole / (atoms.get_volume() * 1e-24)
    assert density == pytest.approx(1.0, rel=2e-3)


def test_rotations_are_proper(rng):
    for _ in range(20):
        turn = random_rotation(rng)
        assert turn @ turn.T == pytest.approx(np.eye(3), abs=1e-14)
        assert np.linalg.det(turn) == pytest.approx(1.0)


def test_finite_differences_of_a_known_function():
    atoms = random_crystal(3)
    before = atoms.copy()
    positions = atoms.positions

    def quartic(structure: Atoms) -> float:  # the stencil is exact for it
        return float((structure.positions**4).sum())

    assert finite_difference_forces(quartic, atoms) == pytest.approx(-4 * positions**3, rel=1e-6)

    def depends_on_cell(structure: Atoms) -> float:
        x, y, z = structure.cell.array
        return float(x @ x + x @ y + 3 * y @ z)

    x, y, z = atoms.cell.array
    gradient = 2 * np.outer(x, x) + np.outer(x, y) + np.outer(y, x)
    gradient += 3 * (np.outer(y, z) + np.outer(z, y))
    expected = full_3x3_to_voigt_6_stress(gradient) / atoms.get_volume()
    assert finite_strain_stress(depends_on_cell, atoms) == pytest.approx(expected, abs=1e-9)
    assert atoms == before
