"""Runs of all checks: their outcomes, and some of ASE's calculators."""

from __future__ import annotations

import numpy as np
import pytest
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones

from mlff_triton.errors import InputError
from mlff_triton.testing import (
    CHECKS,
    ConformanceError,
    check_calculator,
    random_crystal,
)
from tests.support.calculators import (
    CUTOFF,
    STRUCTURES,
    AnswersForNaN,
    FreeEnergyWithEntropy,
    NetForce,
    Reference,
)


def test_all_failures_are_reported_by_name():
    class Broken(NetForce, FreeEnergyWithEntropy, AnswersForNaN):
        pass

    with pytest.raises(ConformanceError, match="forces_sum_to_zero: AssertionError: ") as caught:
        check_calculator(Broken, STRUCTURES["triclinic"])
    expected = {
        "forces_match_energy",
        "forces_sum_to_zero",
        "free_energy_is_energy",
        "rotation_turns_results",  # the net force does not rotate
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
