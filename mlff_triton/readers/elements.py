"""Elements and total charges as given in files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from ase.data import atomic_masses, atomic_numbers

HYDROGEN = {"D": 2, "T": 3}
ISOTOPES = {(1, 2): 2.01410178, (1, 3): 3.01604928}  # masses in amu
AMINO_ACIDS = "ALA ARG ASN ASP CYS GLN GLU GLY HIS ILE LEU LYS MET PHE PRO SER THR TRP TYR VAL"
VARIANTS = "ASH CYM CYX GLH HID HIE HIP LYN ACE NME NMA NH2 HOH WAT TIP SOL"
BASES = "A C G U T DA DC DG DT DU"
RESIDUES = frozenset(f"{AMINO_ACIDS} {VARIANTS} {BASES}".split())
"""Residues with only hydrogen, carbon, nitrogen, oxygen, sulfur and phosphorus."""
IONS = {"SOD": "Na", "POT": "K", "CES": "Cs", "RUB": "Rb", "CAD": "Cd"}
"""Names of CHARMM that begin differently."""
OF_LIGANDS = ("Cl", "Br", "Si", "Se")  # whose names begin like those of other elements
OF_COFACTORS = ("Na", "Fe", "Co", "Ni", "Cu")  # which stand among carbon and nitrogen
UNCLEAR = "the element of atom {atom}, named {name!r}, is not clear: {remedy}"
SPELLING = "write it as Cl, not CL, or convert the file to one with elements"


def element(symbol: str, atom: int) -> int:
    """Return the atomic number of a symbol, or raise `ValueError` with the number of the atom."""
    found = 1 if symbol in HYDROGEN else 0
    if symbol[:1].isupper():
        found = found or atomic_numbers.get(symbol.capitalize(), 0)
    if not found:
        raise ValueError(f"there is no element {symbol!r}, as of atom {atom}")
    return found


def masses_of(numbers: Sequence[int], isotopes: Sequence[int]) -> list[float]:
    """Return the masses of atoms in amu. Isotopes are mass numbers, or 0 for the natural ones."""
    return [
        ISOTOPES.get((z, isotope), float(isotope)) if isotope else float(atomic_masses[z])
        for z, isotope in zip(numbers, isotopes, strict=True)
    ]


def element_of_name(
    given: str, residue: str, atom: int, remedy: str, *, is_one_letter: bool = False
) -> str:
    """Return the element of an atom from its name, such as C for CA in a protein.

    Residues of proteins and nucleic acids have no elements of two letters. An ion has the name of
    its residue.

    Parameters
    ----------
    given, residue : str
        Names of the atom and its residue.
    atom : int
        Number of the atom.
    remedy : str
        Remedy if the element is not clear.
    is_one_letter : bool
        True if the name stands in a place for elements of one letter.

    Raises
    ------
    ValueError
        If the element is not clear.
    """
    name, residue = given.strip(), residue.strip()
    letters = name.lstrip("0123456789")
    two, one = letters[:2].capitalize(), letters[:1].upper()
    is_ion = residue == letters
    found = [symbol for symbol in (two, one) if symbol in HYDROGEN or atomic_numbers.get(symbol)]
    if is_ion and letters in IONS:
        return IONS[letters]
    if residue in RESIDUES:
        found = found[-1:]
    elif len(found) == 2 and not is_ion and is_one_letter:
        found = [] if two in OF_LIGANDS else [one]
    if not found:
        raise ValueError(UNCLEAR.format(atom=atom, name=name, remedy=remedy))
    return found[0]


def elements_of_names(names: Sequence[str], residues: Sequence[tuple[str, str]]) -> list[str]:
    """Return the elements of atoms in files of GROMACS, which hold only names.

    The only atom of a residue that is not one of proteins is an ion, as NA and CL.

    Parameters
    ----------
    names : sequence of str
        Names of atoms.
    residues : sequence of (str, str)
        Number and name of the residue of each atom.

    Raises
    ------
    ValueError
        If an element is not clear.
    """
    found: list[str] = []
    for (_, residue), group in groupby(zip(residues, names, strict=True), itemgetter(0)):
        members = [name for _, name in group]
        for name in members:
            two = name.lstrip("0123456789")[:2]
            is_written = two[1:].islower() and two[:1].isupper()  # as Cl, not CL
            is_alone = len(members) == 1 and residue not in RESIDUES
            is_one_letter = not (is_written or is_alone)
            if is_one_letter and residue not in RESIDUES and two.capitalize() in OF_COFACTORS:
                raise ValueError(UNCLEAR.format(atom=len(found), name=name, remedy=SPELLING))
            symbol = element_of_name(
                name, residue, len(found), SPELLING, is_one_letter=is_one_letter
            )
            found.append(symbol)
    return found
