"""A model, its teacher and what they are compared on, and the results of comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from geometry import Structure
from teacher import Teacher

from mlff_triton.errors import MlffTritonError

NAMED = 5  # molecules in a line about those that are left out


class Finding(NamedTuple):
    """A result of a model beside its reference, in a unit."""

    check: str
    item: str
    unit: str
    model: float
    reference: float


class Gap(NamedTuple):
    """Something that could not be compared, and the reason; it may count as missed."""

    check: str
    reason: str
    is_missed: bool


@dataclass(frozen=True)
class Sizes:
    """Sizes of the long comparisons.

    Attributes
    ----------
    molecules : int
        Number of held-out molecules whose uncertainties are judged.
    waters, droplet : int
        Numbers of molecules in the box and in the droplet of water.
    liquid_picoseconds : float
        Time at constant pressure of the box of water.
    picoseconds : float
        Time in each ensemble of the drugs and the droplet.
    runs : Path
        Directory of simulations.
    """

    molecules: int = 1000
    waters: int = 216
    droplet: int = 64
    liquid_picoseconds: float = 500.0
    picoseconds: float = 1000.0
    runs: Path = Path("acceptance")


@dataclass(frozen=True)
class Methods:
    """A model, its teacher, and what they are compared on.

    Attributes
    ----------
    model, teacher : Calculator
        The model in float64, and its teacher.
    symbols : tuple of str
        Elements that the model knows.
    structures : list of Structure
        Conformers of molecules.
    fast : Calculator or None
        The model in the precision of simulations; by default, `model`.
    periodic : Calculator or None
        The same with the Coulomb energy of all periodic images, if the model has charges.
    limit : float or None
        Uncertainty in eV/Å above which the model flags a structure, if it has one.
    is_neutral : bool
        True if the model takes no total charge but 0.
    sizes : Sizes
        Sizes of long comparisons.
    left_out : dict of set of str
        Molecules that the present comparison leaves out, and what the model does not know of them.
    """

    model: Calculator
    teacher: Calculator
    symbols: tuple[str, ...]
    structures: list[Structure]
    fast: Calculator | None = None
    periodic: Calculator | None = None
    limit: float | None = None
    is_neutral: bool = False
    sizes: Sizes = field(default_factory=Sizes)
    left_out: dict[str, set[str]] = field(default_factory=dict)

    @property
    def simulated(self) -> Calculator:
        """The calculator of simulations in vacuum."""
        return self.fast or self.model

    @property
    def simulated_in_cells(self) -> Calculator:
        """The calculator of simulations in periodic cells."""
        return self.periodic or self.simulated

    def molecules(
        self, is_chosen: Callable[[Structure], bool]
    ) -> Iterator[tuple[str, Atoms, Structure]]:
        """Yield name, atoms and topology of the first conformer of each chosen molecule."""
        first: dict[str, Structure] = {}
        for each in filter(is_chosen, self.structures):
            first.setdefault(each.name, each)
        for name, each in first.items():
            atoms = Atoms(each.numbers, each.positions, info={"charge": each.charge})
            if self.knows(name, atoms):
                yield name, atoms, each

    def family(self, name: str) -> Iterator[tuple[str, Atoms, Structure]]:
        """Yield the molecules of a family, see `molecules`."""
        return self.molecules(lambda each: each.group == name)

    def knows(self, name: str, atoms: Atoms) -> bool:
        """Return True if the model knows all elements and the charge; otherwise, note the name."""
        unknown = set(atoms.symbols) - set(self.symbols)
        if self.is_neutral and atoms.info.get("charge"):
            unknown.add("total charges")
        if unknown:
            self.left_out[name] = unknown
        return not unknown


Result: TypeAlias = Finding | Gap
Check: TypeAlias = Callable[[Methods], Iterator[Result]]


def compare(check: Check, methods: Methods) -> list[Result]:
    """Return what a check finds, and a line about all that it leaves out.

    A check that stops with an error, or finds nothing, is missed.
    """
    name = check.__name__.replace("_", " ")
    methods.left_out.clear()
    found: list[Result] = []
    try:
        found.extend(check(methods))
    except MlffTritonError as error:
        found.append(Gap(name, f"stopped: {error}", is_missed=True))
    is_empty = not any(isinstance(each, Finding) for each in found)
    if methods.left_out:
        found.append(Gap(name, _left_out(methods.left_out), is_missed=is_empty))
    return found or [Gap(name, "there is nothing to compare", is_missed=True)]


def _left_out(left_out: dict[str, set[str]]) -> str:
    """Return a line about the molecules that a model does not know."""
    names: Sequence[str] = list(left_out)
    shown = ", ".join(names[:NAMED])
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    unknown = ", ".join(sorted(set.union(*left_out.values())))
    return f"left out: {shown}{more}; the model does not know {unknown}"


class TeacherCalculator(Calculator):
    """A teacher as an ASE calculator of molecules with the total charge ``info["charge"]``."""

    implemented_properties = ("energy", "forces")

    def __init__(self, teacher: Teacher, device: str) -> None:
        super().__init__()
        self._teacher, self._device = teacher, device

    def calculate(
        self, atoms: Any = None, properties: Any = None, system_changes: Any = all_changes
    ) -> None:
        """Compute energy and forces."""
        super().calculate(atoms, properties, system_changes)
        z = torch.tensor(self.atoms.numbers[None], dtype=torch.int64, device=self._device)
        x = self.atoms.positions - self.atoms.positions.mean(0)
        positions = torch.tensor(x[None], dtype=torch.float32, device=self._device)
        charge = torch.tensor([float(self.atoms.info.get("charge", 0))], device=self._device)
        found = self._teacher(z, positions, charge)
        forces = found.forces[0].double().cpu().numpy()
        self.results = {"energy": found.energy.item(), "forces": forces}
