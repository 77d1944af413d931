"""Conversion constants, from CODATA 2018 (https://physics.nist.gov/cuu/Constants/).

The package works in eV, Å, eV/Å, eV/Å^3 and elementary charges, and converts with these
constants.
"""

ELEMENTARY_CHARGE = 1.602176634e-19  # C, exact
AVOGADRO = 6.02214076e23  # 1/mol, exact
HARTREE = 27.211386245988  # eV
BOHR = 0.529177210903  # Å
DEBYE = 0.20819434  # e Å
NM = 10.0  # Å

EV_TO_KJ_PER_MOL = ELEMENTARY_CHARGE * AVOGADRO / 1e3
EV_TO_KCAL_PER_MOL = EV_TO_KJ_PER_MOL / 4.184  # thermochemical calorie, exact by definition
EV_PER_A3_TO_GPA = ELEMENTARY_CHARGE * 1e21

ENERGY_UNITS = {  # one unit in eV
    "eV": 1.0,
    "Hartree": HARTREE,
    "kcal/mol": 1.0 / EV_TO_KCAL_PER_MOL,
    "kJ/mol": 1.0 / EV_TO_KJ_PER_MOL,
}
