"""Atoms of LAMMPS, which are compared with those of the last step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from mlff_triton.calculators.lammps.atoms import KnownAtoms
from mlff_triton.errors import InputError

TAGS, TYPES = [3, 5, 9, 3, 9], [1, 2, 1, 1, 1]
"""Three own atoms and two ghosts."""


class Holding:
    """The part of a LAMMPS instance that holds atoms. It has just exchanged ghosts."""

    def __init__(self) -> None:
        self.arrays = {name: np.array(rows, np.int32) for name, rows in self._rows().items()}
        self.n_own, self.n_total, self.age = 3, 6, 0
        self.numpy = SimpleNamespace(extract_atom=lambda name, nelem: self.arrays[name][:nelem])

    @staticmethod
    def _rows() -> dict[str, list[int]]:
        return {"id": TAGS, "type": TYPES}

    def extract_setting(self, name: str) -> int:
        return {"neigh_ago": self.age, "nghost": len(self.arrays["id"]) - self.n_own}[name]

    def get_natoms(self) -> int:
        return self.n_total

    def exchange(self) -> None:
        self.age = 0

    def set(self, name: str, index: int, value: int) -> None:
        self.arrays[name][index] = value

    def drop_ghost(self) -> None:
        self.arrays = {name: values[:-1] for name, values in self.arrays.items()}


def known(*, with_ghosts: bool = True) -> tuple[Holding, KnownAtoms]:
    """Return atoms that are known, in the step that follows an exchange."""
    lmp = Holding()
    atoms = KnownAtoms(lmp)
    assert atoms.update(3, with_ghosts=with_ghosts)
    lmp.age = 1
    assert not atoms.update(3, with_ghosts=with_ghosts)
    return lmp, atoms


CHANGES: dict[str, Callable[[Holding], None]] = {
    "type": lambda lmp: lmp.set("type", 1, 1),
    "type of a ghost": lambda lmp: lmp.set("type", 4, 2),
    "atoms of other ranks": lambda lmp: setattr(lmp, "n_total", 7),
    "number of ghosts": Holding.drop_ghost,
}
CHANGES_AT_AN_EXCHANGE: dict[str, Callable[[Holding], None]] = CHANGES | {
    "ID": lambda lmp: lmp.set("id", 1, 7),
    "ID of a ghost": lambda lmp: lmp.set("id", 4, 5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_noticed_in_any_step(name: str) -> None:
    lmp, atoms = known()
    CHANGES[name](lmp)
    assert atoms.update(3, with_ghosts=True)
    assert not atoms.update(3, with_ghosts=True)


@pytest.mark.parametrize("name", CHANGES_AT_AN_EXCHANGE)
def test_changes_are_noticed_at_an_exchange(name: str) -> None:
    lmp, atoms = known()
    lmp.exchange()
    assert not atoms.update(3, with_ghosts=True)
    CHANGES_AT_AN_EXCHANGE[name](lmp)
    assert atoms.update(3, with_ghosts=True)
    assert atoms.tags.tolist() == lmp.arrays["id"].tolist()
    assert atoms.types.tolist() == lmp.arrays["type"].tolist()


@pytest.mark.parametrize("name", CHANGES_AT_AN_EXCHANGE)
def test_ghosts_need_not_count(name: str) -> None:
    lmp, atoms = known(with_ghosts=False)
    lmp.exchange()
    CHANGES_AT_AN_EXCHANGE[name](lmp)
    assert atoms.update(3, with_ghosts=False) == (not name.endswith(("ghost", "ghosts")))


def test_own_atoms_may_become_ghosts() -> None:
    lmp, atoms = known()
    lmp.exchange()
    lmp.n_own = 2
    assert atoms.update(2, with_ghosts=True)
    assert (atoms.n_own, atoms.n_total) == (2, 6)


def test_steps_without_ghosts_leave_them_known_until_the_next_exchange() -> None:
    lmp, atoms = known()
    assert not atoms.update(3, with_ghosts=False)
    assert not atoms.update(3, with_ghosts=True)
    lmp.exchange()
    lmp.set("id", 4, 5)  # of the same type
    assert not atoms.update(3, with_ghosts=False)
    lmp.age = 1
    assert atoms.update(3, with_ghosts=True)
    assert atoms.tags.tolist() == [3, 5, 9, 3, 5]


@pytest.mark.parametrize("n_atoms", [0, 3])
def test_forgotten_atoms_differ_even_from_none(n_atoms: int) -> None:
    lmp = Holding()
    lmp.arrays = {name: values[:n_atoms] for name, values in lmp.arrays.items()}
    lmp.n_own, lmp.age = n_atoms, 1
    atoms = KnownAtoms(lmp)
    for _ in range(2):
        assert atoms.update(n_atoms, with_ghosts=True)
        assert not atoms.update(n_atoms, with_ghosts=True)
        atoms.forget()


def test_atoms_need_ids() -> None:
    lmp = Holding()
    lmp.arrays["id"][:] = 0
    with pytest.raises(InputError, match="atoms have no IDs"):
        KnownAtoms(lmp).update(3, with_ghosts=True)
