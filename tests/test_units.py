"""Constants, derived from other constants of CODATA 2018.

From version 1.15 on, scipy.constants follows CODATA 2022, so only its exact constants are used. The
measured constants are those of
https://physics.nist.gov/cuu/Constants/ArchiveASCII/allascii_2018.txt.
"""

from __future__ import annotations

import math

import pytest
import scipy.constants

from mlff_triton import units

RYDBERG = 10973731.568160  # 1/m, relative uncertainty 1.9e-12
FINE_STRUCTURE = 7.2973525693e-3  # 1.5e-10
HARTREE_IN_JOULE = 4.3597447222071e-18
HARTREE_IN_KCAL_PER_MOL = 627.5094740631


def test_exact_constants():
    assert scipy.constants.e == units.ELEMENTARY_CHARGE
    assert units.AVOGADRO == scipy.constants.N_A


def test_hartree_follows_from_the_rydberg_constant():
    joule = 2 * RYDBERG * scipy.constants.h * scipy.constants.c
    assert joule == pytest.approx(HARTREE_IN_JOULE, rel=2e-12)
    assert pytest.approx(joule / scipy.constants.e, rel=2e-12) == units.HARTREE


def test_bohr_follows_from_the_fine_structure_constant():
    metre = FINE_STRUCTURE / (4 * math.pi * RYDBERG)
    assert pytest.approx(metre * 1e10, rel=1.5e-10) == units.BOHR


def test_hartree_and_bohr_are_one_another_and_of_2018():
    # E_h a_0 = alpha hbar c. The last digits tell the year: those of 2022 are ...5981 and ...10544
    product = FINE_STRUCTURE * scipy.constants.hbar * scipy.constants.c / scipy.constants.e * 1e10
    assert pytest.approx(product, rel=2e-10) == units.HARTREE * units.BOHR
    assert units.HARTREE == 27.211386245988
    assert units.BOHR == 0.529177210903


def test_molar_energies():
    joule = scipy.constants.e * scipy.constants.N_A
    assert pytest.approx(joule / 1000, rel=1e-15) == units.EV_TO_KJ_PER_MOL
    assert pytest.approx(96.48533212331, rel=1e-12) == units.EV_TO_KJ_PER_MOL  # F in kC/mol
    assert pytest.approx(23.060547830619, rel=1e-12) == units.EV_TO_KCAL_PER_MOL
    assert (
        pytest.approx(HARTREE_IN_KCAL_PER_MOL, rel=1e-12)
        == units.HARTREE * units.EV_TO_KCAL_PER_MOL
    )


def test_pressure():
    pascal = scipy.constants.e / scipy.constants.angstrom**3
    assert pytest.approx(pascal / 1e9, rel=1e-14) == units.EV_PER_A3_TO_GPA


@pytest.mark.parametrize(
    ("unit", "joule"),
    [
        ("eV", scipy.constants.e),
        ("Hartree", HARTREE_IN_JOULE),
        ("kJ/mol", 1e3 / scipy.constants.N_A),
        ("kcal/mol", 1e3 * scipy.constants.calorie / scipy.constants.N_A),
    ],
)
def test_energy_units(unit, joule):
    assert units.ENERGY_UNITS[unit] == pytest.approx(joule / scipy.constants.e, rel=2e-12)


def test_no_energy_unit_is_untested():
    assert units.ENERGY_UNITS.keys() == {"eV", "Hartree", "kJ/mol", "kcal/mol"}
