"""Atoms that are too close, found in a simulation without a search in every step."""

from __future__ import annotations

import numpy as np
import pytest
from ase.build import bulk, molecule

from mlff_triton.calculators._plausibility import contact_limits
from mlff_triton.errors import InputError
from mlff_triton.neighbors import contacts
from mlff_triton.neighbors.contacts import ContactSearch


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the atoms of each search for neighbors."""
    found: list[int] = []
    find_pairs = contacts.find_pairs
    monkeypatch.setattr(
        contacts, "find_pairs", lambda x, *rest: found.append(len(x)) or find_pairs(x, *rest)
    )
    return found


@pytest.mark.parametrize("kind", ["molecule", "crystal"])
def test_each_step_finds_what_a_new_search_finds(kind, searches):
    """Atoms wander randomly until two of them meet, which few steps search for."""
    atoms = molecule("C2H6") if kind == "molecule" else bulk("Al", cubic=True)
    limits, rng = contact_limits(atoms.numbers), np.random.default_rng(1)
    search, n_steps = ContactSearch(limits), 0
    while True:
        state = atoms.positions, atoms.cell.array, atoms.pbc
        contact, expected = search.find(*state), ContactSearch(limits).find(*state)
        assert contact == expected
        if contact is not None:
            break
        n_steps += 1
        atoms.positions += rng.normal(0, 0.03, atoms.positions.shape)
    distance = atoms.get_distance(contact.first, contact.second, mic=True)
    assert distance == pytest.approx(contact.distance)
    assert distance <= limits[contact.first] + limits[contact.second]
    assert len(searches) - n_steps - 1 < n_steps / 3
    assert search.find(*state) == contact


def test_a_cell_that_changes_is_searched_again():
    atoms = bulk("Al", cubic=True)
    search = ContactSearch(contact_limits(atoms.numbers))
    assert search.find(atoms.positions, atoms.cell.array, atoms.pbc) is None
    small = np.diag([4.05, 4.05, 0.5])  # in which each atom is too close to its own image
    contact = search.find(atoms.positions, small, atoms.pbc)
    assert contact is not None
    assert contact.first == contact.second
    assert contact.distance == pytest.approx(0.5)


def test_positions_that_are_not_finite_are_refused():
    atoms = molecule("H2O")
    search = ContactSearch(contact_limits(atoms.numbers))
    assert search.find(atoms.positions, atoms.cell.array, atoms.pbc) is None
    atoms.positions[1] = np.nan
    with pytest.raises(InputError, match="atom 1 is NaN"):
        search.find(atoms.positions, atoms.cell.array, atoms.pbc)
