"""States that simulations start from: melted systems, computed once and kept in a folder."""

from __future__ import annotations

import dataclasses
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ase import Atoms, units
from ase.data import atomic_masses
from numpy.typing import NDArray

from benchmarks.dynamics.cases import FRICTION, TEMPERATURE, TIME_STEP, Case, Plan
from benchmarks.systems.models import model
from benchmarks.systems.systems import GRID, System
from mlff_triton.calculators import TensorNetCalculator
from mlff_triton.dynamics import Settings, Simulation, Stage
from mlff_triton.dynamics.preparation import draw_momenta

FOLDER = Path(__file__).resolve().parents[2] / "runs" / "melted"
COLDEST = 50.0  # K, at which systems are heated from

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Start:
    """A system with velocities.

    Attributes
    ----------
    system : System
        Positions are within the cell, and multiples of `benchmarks.systems.systems.GRID`.
    velocities : float64 [N, 3]
        Velocities in the units of ASE.
    wall : float, optional
        Radius in Å of a sphere around the center of the atoms, in which OpenMM keeps them.
    """

    system: System
    velocities: FloatArray
    wall: float | None = None

    @property
    def masses(self) -> FloatArray:
        """Masses, float64 [N] in amu."""
        return np.asarray(atomic_masses[self.system.numbers])

    def temperature(self, velocities: FloatArray) -> float:
        """Return the temperature in K of velocities [N, 3], of 3N degrees of freedom."""
        twice = float((self.masses[:, None] * velocities**2).sum())
        return twice / (velocities.size * units.kB)

    def images(self) -> list[Atoms]:
        """Return the systems as Atoms with velocities."""
        system = self.system
        ends = np.flatnonzero(np.diff(system.batch)) + 1
        parts = zip(
            np.split(system.numbers, ends),
            system.parts,
            np.split(self.velocities, ends),
            strict=True,
        )
        return [
            Atoms(numbers, positions, velocities=v, cell=system.cell, pbc=system.cell is not None)
            for numbers, positions, v in parts
        ]


def moved(system: System, positions: FloatArray) -> System:
    """Return a system with other positions, wrapped into the cell and rounded to the grid.

    Rounded positions are exact in float32, in Å and in nm: no implementation rounds its input.
    """
    if system.cell is not None:
        positions = positions - np.floor(positions / np.diag(system.cell)) * np.diag(system.cell)
    return dataclasses.replace(system, positions=np.round(positions / GRID) * GRID)


def start_of(case: Case, folder: Path, device: torch.device, plan: Plan) -> Start:
    """Return the state that all simulations of a case start from.

    Systems that are melted are read from the folder if they were melted for long enough, and
    written to it otherwise.
    """
    if not case.hold:
        return dataclasses.replace(drawn(case.build()), wall=case.wall)
    hold, settle = (min(steps, plan.longest) for steps in (case.hold, case.settle))
    path = folder / f"{case.name}.npz"
    found = _read(path, hold + settle)
    if found is not None:
        return found
    heating = plan.heating if case.replicas == 1 else 0  # molecules are near a minimum already
    start = _run(drawn(case.build()), hold, device, heating, case.ensemble)
    if case.repeats > 1:
        start = _run(repeated(start.system, case.repeats), settle, device)
    _write(path, start, hold + settle)
    ps, kelvin = (hold + settle) * TIME_STEP / 1000, start.temperature(start.velocities)
    print(f"melted {case.name}: {ps:g} ps, {kelvin:.0f} K", flush=True)
    return start


def drawn(system: System) -> Start:
    """Draw velocities for a system."""
    start = Start(moved(system, system.positions), np.zeros_like(system.positions))
    images = start.images()
    for seed, atoms in enumerate(images):
        draw_momenta(atoms, TEMPERATURE, np.random.default_rng(seed))
    return _of(system, images)


def repeated(system: System, repeats: int) -> Start:
    """Repeat a periodic system along each axis, and draw new velocities for all copies."""
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=True)
    return drawn(System.of([atoms.repeat(repeats)]))


def _of(system: System, images: list[Atoms]) -> Start:
    positions = np.concatenate([atoms.positions for atoms in images])
    velocities = np.concatenate([atoms.get_velocities() for atoms in images])
    if system.cell is not None:
        system = dataclasses.replace(system, cell=images[0].cell.array)
    return Start(moved(system, positions), velocities)


def _run(
    start: Start, steps: int, device: torch.device, heating: int = 0, ensemble: str = "nvt"
) -> Start:
    """Simulate with the shipped model, first minimizing and heating if there are such steps."""
    stages = [Stage(name, n) for name, n in (("nvt", heating), (ensemble, steps)) if n]
    settings = Settings(
        stages=tuple(stages),
        temperature=TEMPERATURE,
        heat_from=COLDEST if heating else None,
        timestep=TIME_STEP,
        friction=FRICTION,
        minimize=heating > 0,
        every=max(heating, steps),
    )
    calculator = TensorNetCalculator(model("shipped"), device=str(device))
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation.start(start.images(), calculator, settings, folder)
        simulation.run()
    return _of(start.system, simulation.systems)


def _write(path: Path, start: Start, steps: int) -> None:
    system = start.system
    arrays = {"numbers": system.numbers, "positions": system.positions, "batch": system.batch}
    if system.cell is not None:
        arrays["cell"] = system.cell
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, velocities=start.velocities, steps=steps, **arrays)


def _read(path: Path, steps: int) -> Start | None:
    """Read a state that was melted for at least this many steps; None if there is none."""
    try:
        with np.load(path) as file:
            arrays = dict(file)
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    if arrays["steps"] < steps:
        return None
    names = ("numbers", "positions", "batch")
    system = System(cell=arrays.get("cell"), **{name: arrays[name] for name in names})
    return Start(system, arrays["velocities"])
