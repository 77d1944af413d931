"""Boxes of liquid density, made of copies of a smaller one."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from benchmarks.systems.systems import System, random_box, water
from mlff_triton.errors import InputError

CHECKED = 4096  # atoms of the case that is compared with the truth
PER_RANK = 31_250 * 8
UNITS = 4_096, 16_384, 32_768, 65_536


@dataclass(frozen=True)
class Case:
    """One box and one model.

    Attributes
    ----------
    kind : {"check", "overhead", "strong", "weak"}
        Purpose of the case. Only that of kind "check" is compared with the truth.
    model : {"random", "shipped", "charged"}
        Random weights with F = 128, the shipped model, or a TensorNet2 with random weights.
    unit : int
        Approximate number of atoms that are copied.
    copies : tuple of int
        Copies in each direction.
    """

    kind: str
    model: str
    unit: int
    copies: tuple[int, int, int] = (1, 1, 1)

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"{self.kind}-{self.model}-{self.n_atoms}"

    @property
    def n_atoms(self) -> int:
        """Number of atoms. Molecules of water fill a cubic lattice, which changes it a little."""
        unit = 3 * self._per_side**3 if self.model == "shipped" else self.unit
        return unit * prod(self.copies)

    def system(self) -> System:
        """Return the atoms that are copied: water, or random ones."""
        return water(self._per_side**3) if self.model == "shipped" else random_box(self.unit)

    def sides(self, system: System) -> NDArray[np.float64]:
        """Return the sides of the atoms that are copied; raise an `InputError` without a box."""
        if system.cell is None:
            raise InputError(f"{self.name} is too small for a periodic box")
        return np.diagonal(system.cell)

    @property
    def _per_side(self) -> int:
        return round((self.unit / 3) ** (1 / 3))


def cases(n_ranks: int) -> list[Case]:
    """Return the cases for a number of ranks, the checked ones first."""
    found = []
    for model in ("random", "shipped"):
        found += [Case("check", model, CHECKED), Case("overhead", model, 65_536)]
        found += [
            Case("strong", model, 4_096, (2, 2, 2)),
            Case("strong", model, 4_096, (4, 2, 2)),
            *(Case("strong", model, unit, (4, 4, 4)) for unit in UNITS),
        ]
        found.append(Case("weak", model, 31_250, weak_copies(n_ranks)))
    found.append(Case("check", "charged", CHECKED))
    found.append(Case("strong", "charged", 4_096, (4, 2, 2)))
    return found if n_ranks == 1 else [case for case in found if case.kind != "overhead"]


def weak_copies(n_ranks: int) -> tuple[int, int, int]:
    """Return copies of 31,250 atoms, eight per rank, in a box as compact as possible."""
    copies = [2, 2, 2]
    rest = n_ranks
    for factor in (5, 3, 2):
        while rest % factor == 0:
            copies[copies.index(min(copies))] *= factor
            rest //= factor
    copies[copies.index(min(copies))] *= rest
    return copies[0], copies[1], copies[2]
