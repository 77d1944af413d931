"""Every case of the whole-step benchmarks, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.systems import systems
from benchmarks.systems.geometries import MD17, MD22
from benchmarks.systems.systems import System

TRUTH_ATOMS = 4096  # the most for which the float64 truth with its autograd graph is computed


@dataclass(frozen=True)
class Case:
    """What a step is measured on.

    Attributes
    ----------
    bench, name : str
        As in the results.
    build : callable
        Makes the system.
    model : str
        One of `benchmarks.systems.models.MODELS`.
    check : str, optional
        Name of a smaller case of this bench, whose forces are compared with the truth instead.
    stress : bool
        Whether the virial has to be right too.
    """

    bench: str
    name: str
    build: Callable[[], System]
    model: str = "random"
    check: str | None = None
    stress: bool = False


def _scaled(
    bench: str, model: str, build: Callable[[int], System], sizes: dict[int, int]
) -> list[Case]:
    """Cases of one kind that grow; sizes are the atoms of each and what ``build`` needs for it."""
    checked = str(max(atoms for atoms in sizes if atoms <= TRUTH_ATOMS))
    return [
        Case(bench, str(n), partial(build, size), model, checked if n > TRUTH_ATOMS else None)
        for n, size in sizes.items()
    ]


BOXES = {n: n for n in (21, 128, 512, 1024, 4096, 16384, 65536, 1_000_000)}
WATER = {3 * n: n for n in (7, 64, 343, 1331, 5832, 21952)}  # cubes: the box is full

CRYSTALS: dict[str, Callable[[], System]] = {
    "Si-64": partial(systems.crystal, "Si", "diamond", 5.43, 2),
    "MgO-512": partial(systems.crystal, "MgO", "rocksalt", 4.21, 4),
    "NaCl-4096": partial(systems.crystal, "NaCl", "rocksalt", 5.64, 8),
}

CASES: tuple[Case, ...] = (
    *_scaled("step", "random", systems.random_box, BOXES),
    *_scaled("shipped", "shipped", systems.water, WATER),
    *(Case("matpes", name, build, "matpes", stress=True) for name, build in CRYSTALS.items()),
    Case("batch", "256x21", partial(systems.conformers, "aspirin", 256)),
    *(Case("md17", name, partial(systems.molecule, name)) for name in MD17),
    *(Case("md22", name, partial(systems.molecule, name)) for name in MD22),
    *_scaled("ase", "shipped", systems.water, WATER),
    *_scaled("openmm", "shipped", systems.water, WATER),
)


def standing_in(case: Case) -> Case:
    """The case whose forces are compared with the truth: the case itself unless it is large."""
    if case.check is None:
        return case
    return next(one for one in CASES if (one.bench, one.name) == (case.bench, case.check))
