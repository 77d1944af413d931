"""Conformance checks: a correct calculator passes them all, and broken ones fail theirs."""

from __future__ import annotations

from contextlib import suppress

import pytest

from mlff_triton.testing import (
    CHECKS,
    Case,
    NotApplicable,
)
from tests.support.calculators import (
    BROKEN,
    CUTOFF,
    STRUCTURES,
    NoStress,
    Reference,
)


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


def test_partly_periodic_atoms_need_no_stress():
    case = Case(NoStress, STRUCTURES["slab"])
    with pytest.raises(NotApplicable, match="no stress for partly periodic"):
        CHECKS["stress_matches_energy"](case)
