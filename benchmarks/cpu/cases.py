"""The cases of bench "cpu"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.systems import systems
from benchmarks.systems.systems import System

EVALUATION, SCALING, MD, FIRST, LAMMPS = "evaluation", "scaling", "md", "first", "lammps"
FEW = (1, 2)  # threads, by default
MANY = (1, 2, 4, 8, 16)  # of scaling


@dataclass(frozen=True)
class Case:
    """A system, the model that is evaluated on it, and what is measured.

    Attributes
    ----------
    name : str
        Name in the results.
    kind : {"evaluation", "scaling", "md", "first", "lammps"}
        Evaluations with moving atoms, the same by the number of threads, steps of simulations,
        first calls of new processes, or steps of LAMMPS.
    build : callable
        Return the system.
    model : str
        Key of `benchmarks.systems.models.MODELS`.
    stand_in : Case, optional
        Smaller case whose forces are compared with the truth instead.
    """

    name: str
    kind: str
    build: Callable[[], System]
    model: str = "shipped"
    stand_in: Case | None = None

    @property
    def checked(self) -> Case:
        """Case whose forces are compared with the truth: this one, or its stand-in."""
        return self.stand_in or self

    @property
    def threads(self) -> tuple[int, ...]:
        """Numbers of threads to measure with, unless others are asked for."""
        return MANY if self.kind == SCALING else FEW


WATER = {3 * n: partial(systems.water, n) for n in (7, 64, 343, 21952)}
DROPLET = partial(systems.structure, "alanine-dipeptide-water")
BUILD: dict[str, Callable[[], System]] = {
    "21": WATER[21],
    "166": DROPLET,
    "1029": WATER[1029],
}
SMALL = Case("scaling-1029", SCALING, WATER[1029])

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *(Case(name, EVALUATION, build) for name, build in BUILD.items()),
        Case("ritonavir", EVALUATION, partial(systems.molecule, "ritonavir"), "charged-vacuum"),
        Case("matpes-192", EVALUATION, WATER[192], "matpes"),
        *(Case(f"md-{name}", MD, build) for name, build in BUILD.items()),
        Case("first-21", FIRST, WATER[21]),
        Case("first-1029", FIRST, WATER[1029]),
        Case("lammps-1029", LAMMPS, WATER[1029]),
        SMALL,
        Case("scaling-65856", SCALING, WATER[65856], stand_in=SMALL),
    )
}
