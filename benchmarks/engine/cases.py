"""The cases of the whole-step benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.systems import systems
from benchmarks.systems.geometries import MD17, MD22
from benchmarks.systems.systems import System

TRUTH_ATOMS = 4096  # the largest system whose float64 truth, with its autograd graph, is computed


@dataclass(frozen=True)
class Case:
    """A system and the model that is evaluated on it.

    Attributes
    ----------
    bench, name : str
        Names in the results.
    build : callable
        Return the system.
    model : str
        Key of `benchmarks.systems.models.MODELS`.
    stand_in : Case, optional
        Smaller case of this bench whose forces are compared with the truth instead.
    stress : bool
        If True, the virial is checked too.
    """

    bench: str
    name: str
    build: Callable[[], System]
    model: str = "random"
    stand_in: Case | None = None
    stress: bool = False

    @property
    def checked(self) -> Case:
        """Case whose forces are compared with the truth: this one, or its stand-in."""
        return self.stand_in or self


def _scaled(
    bench: str,
    model: str,
    build: Callable[[int], System],
    sizes: dict[int, int],
    prefix: str = "",
) -> list[Case]:
    """Return cases of growing size; ``sizes`` maps numbers of atoms to arguments of ``build``."""
    checkable = {
        n: Case(bench, f"{prefix}{n}", partial(build, size), model)
        for n, size in sizes.items()
        if n <= TRUTH_ATOMS
    }
    stand_in = checkable[max(checkable)]
    return [
        checkable.get(n) or Case(bench, f"{prefix}{n}", partial(build, size), model, stand_in)
        for n, size in sizes.items()
    ]


BOXES = {n: n for n in (21, 128, 512, 1024, 4096, 16384, 65536, 1_000_000)}
WATER = {3 * n: n for n in (7, 64, 343, 1331, 5832, 21952)}  # cubic numbers fill the box

CHARGED = {n: n for n in (21, 1024, 4096, 65536)}
MESHES = {n: n for n in (4096, 65536)}

CRYSTALS: dict[str, Callable[[], System]] = {
    "Si-64": partial(systems.crystal, "Si", "diamond", 5.43, 2),
    "MgO-512": partial(systems.crystal, "MgO", "rocksalt", 4.21, 4),
    "NaCl-4096": partial(systems.crystal, "NaCl", "rocksalt", 5.64, 8),
}

CASES: tuple[Case, ...] = (
    *_scaled("step", "random", systems.random_box, BOXES),
    *_scaled("uncertainty", "uncertain", systems.random_box, CHARGED),  # to compare with "step"
    *_scaled("charged", "charged", systems.random_box, CHARGED),
    *_scaled("charged", "charged-pme", systems.random_box, MESHES, prefix="pme-"),
    *_scaled("shipped", "shipped", systems.water, WATER),
    *_scaled("default", "default", systems.water, WATER),
    *(Case("matpes", name, build, "matpes", stress=True) for name, build in CRYSTALS.items()),
    Case("batch", "256x21", partial(systems.conformers, "aspirin", 256)),
    *(Case("md17", name, partial(systems.molecule, name)) for name in MD17),
    *(Case("md22", name, partial(systems.molecule, name)) for name in MD22),
    *_scaled("ase", "shipped", systems.water, WATER),
    *_scaled("openmm", "shipped", systems.water, WATER),
)
