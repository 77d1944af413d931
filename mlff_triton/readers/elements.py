"""Elements and total charges as given in files."""

from __future__ import annotations

from collections.abc import Sequence

from ase.data import atomic_masses, atomic_numbers

HYDROGEN = {"D": 2, "T": 3}
ISOTOPES = {(1, 2): 2.01410178, (1, 3): 3.01604928}  # masses in amu


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
