"""Whether a simulation is the exact module's: its energies and forces along the way, its drift.

NVE at 300 K with the shipped model, velocity Verlet, 0.5 fs. Column ``error`` holds, by case:

- ``nve-energy-*``: largest error of the energy against the exact module in float64, kcal/mol;
- ``nve-forces-*``: largest error of a force, over the largest true one at that step;
- ``drift-*``: slope of the total energy, eV/atom/ps, without its sign;
- ``drift-*-sigma``: the standard error of that slope.

Times are those of a step of ASE, or of OpenMM where the implementation is, by the host's clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE
from numpy.typing import NDArray

from benchmarks.calculators.openmm_steps import PLATFORMS, make_context
from benchmarks.lab.guards import at_most, clean_up
from benchmarks.lab.runner import Lab
from benchmarks.lab.schema import make_row
from benchmarks.systems import systems
from benchmarks.systems.models import model
from benchmarks.systems.systems import System
from mlff_triton._common.timing import Timing
from mlff_triton.calculators import TensorNetCalculator, create_openmm_force
from mlff_triton.dynamics.preparation import draw_momenta
from mlff_triton.units import EV_TO_KCAL_PER_MOL, EV_TO_KJ_PER_MOL, NM

TIME_STEP = 0.5  # fs
TEMPERATURE = 300.0  # K, after half of what the start holds has become potential energy
PIECES = 10
ENERGY_LIMIT, FORCE_LIMIT = 1e-6, 1e-5  # kcal/mol, relative: what the engine promises in float64
DRIFT_LIMIT = 1e-6  # eV/atom/ps

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Simulated:
    """A way to compute the forces of a simulation, for cases of some kinds."""

    kinds: ClassVar = ("nve", "drift")

    name: str
    dtype: str
    backend: str

    def calculator(self, device: str) -> TensorNetCalculator:
        """The shipped model, computed this way."""
        return TensorNetCalculator(
            model("shipped"), device=device, dtype=self.dtype, backend=self.backend
        )

    def total_energies(self, atoms: Atoms, device: str, times: list[float]) -> Iterator[float]:
        """Total energies along a long simulation, eV."""
        atoms.calc = self.calculator(device)
        for moved in simulate(atoms, DRIFT_STEPS, DRIFT_EVERY, times):
            yield moved.get_total_energy()


class SimulatedByOpenMM(Simulated):
    """The same through OpenMM's Verlet integrator, on its fastest platform."""

    kinds: ClassVar = ("drift",)

    def total_energies(self, atoms: Atoms, device: str, times: list[float]) -> Iterator[float]:
        """Total energies along a long simulation, eV."""
        force = create_openmm_force(
            atoms.numbers, model("shipped"), device=device, dtype=self.dtype, backend=self.backend
        )
        system = System.of([atoms])
        platform = PLATFORMS[torch.device(device).type]
        properties = {"Precision": "mixed"} if platform == "CUDA" else {}
        context = make_context(system, force, TIME_STEP / 1000, platform, **properties)
        context.setPositions(atoms.positions / NM)
        context.setVelocities(atoms.get_velocities() * (1000 * units.fs / NM))
        for _ in range(DRIFT_STEPS // DRIFT_EVERY):
            begun = time.perf_counter()
            context.getIntegrator().step(DRIFT_EVERY)
            times.append((time.perf_counter() - begun) / DRIFT_EVERY)
            state = context.getState(energy=True)
            total = state.getPotentialEnergy() + state.getKineticEnergy()
            yield total._value / EV_TO_KJ_PER_MOL


SIMULATED = (
    Simulated("engine", "float32", "auto"),
    Simulated("engine-float64", "float64", "auto"),
    Simulated("exact", "float32", "exact"),
    SimulatedByOpenMM("openmm", "float32", "auto"),
)
TRUTH = Simulated("exact-float64", "float64", "exact")

NVE = {"aspirin": partial(systems.molecule, "aspirin"), "water-192": partial(systems.water, 64)}
NVE_STEPS, NVE_EVERY = 1000, 10
DRIFT = {"aspirin": partial(systems.molecule, "aspirin")}
DRIFT_STEPS, DRIFT_EVERY = 200_000, 10
CASES = (*(f"nve-{name}" for name in NVE), *(f"drift-{name}" for name in DRIFT))


def run_fidelity(lab: Lab, cases: Sequence[str], names: Sequence[str]) -> None:
    """Simulate the cases in each of the ways that are named."""
    for case in cases:
        kind, name = case.split("-", 1)
        for simulated in SIMULATED:
            if simulated.name not in names or kind not in simulated.kinds:
                continue
            clean_up(lab.device)
            try:
                with at_most(min(lab.budget.each, lab.budget.left)):
                    measured = _nve if kind == "nve" else _drift
                    measured(lab, name, simulated)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others can still run
                lab.complain(f"fidelity {case} {simulated.name}", error)


def _nve(lab: Lab, name: str, simulated: Simulated) -> None:
    """Energies and forces along a short simulation, against the truth at the same places."""
    system = NVE[name]()
    atoms = start(system, str(lab.device))
    truth = atoms.copy()
    truth.calc = TRUTH.calculator(str(lab.device))
    atoms.calc = simulated.calculator(str(lab.device))
    energy_error = force_error = 0.0
    times: list[float] = []
    for _ in simulate(atoms, NVE_STEPS, NVE_EVERY, times):
        truth.positions = atoms.positions
        expected = truth.get_forces()
        difference = atoms.get_potential_energy() - truth.get_potential_energy()
        energy_error = max(energy_error, abs(difference) * EV_TO_KCAL_PER_MOL)
        off = np.abs(atoms.get_forces() - expected).max() / np.abs(expected).max()
        force_error = max(force_error, float(off))
    _report(lab, f"nve-energy-{name}", simulated, system, times, energy_error, ENERGY_LIMIT)
    _report(lab, f"nve-forces-{name}", simulated, system, times, force_error, FORCE_LIMIT)


def _drift(lab: Lab, name: str, simulated: Simulated) -> None:
    """Slope of the total energy over a long simulation."""
    system = DRIFT[name]()
    atoms = start(system, str(lab.device))
    times: list[float] = []
    totals = list(simulated.total_energies(atoms, str(lab.device), times))
    picoseconds = DRIFT_EVERY * TIME_STEP / 1000
    slope, sigma = drift(np.array(totals) / system.n_atoms, picoseconds)
    _report(lab, f"drift-{name}", simulated, system, times, abs(slope), DRIFT_LIMIT)
    _report(lab, f"drift-{name}-sigma", simulated, system, times, sigma, DRIFT_LIMIT)


def _report(
    lab: Lab,
    case: str,
    simulated: Simulated,
    system: System,
    times: list[float],
    error: float,
    limit: float,
) -> None:
    """A row; one beyond its limit has no time."""
    size = system.n_atoms, system.count_edges(model("shipped").cutoff)
    low, middle, high = 1e3 * np.quantile(times, [0.2, 0.5, 0.8])
    timing = Timing(float(low), float(middle), float(high), None) if error <= limit else None
    lab.report(make_row("fidelity", case, simulated.name, size, lab.where, timing, error))


def start(system: System, device: str) -> Atoms:
    """The system relaxed and set in motion by the truth: the same for all that is compared."""
    periodic = system.cell is not None
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=periodic)
    atoms.calc = TRUTH.calculator(device)
    FIRE(atoms, logfile=None).run(fmax=0.1, steps=100)
    draw_momenta(atoms, 2 * TEMPERATURE, np.random.default_rng(0))
    atoms.calc = None
    return atoms


def simulate(atoms: Atoms, steps: int, every: int, times: list[float]) -> Iterator[Atoms]:
    """The atoms after every so many steps; the seconds of each step go to ``times``."""
    dynamics = VelocityVerlet(atoms, timestep=TIME_STEP * units.fs)
    for _ in range(steps // every):
        for _ in range(every):
            begun = time.perf_counter()
            dynamics.step()
            times.append(time.perf_counter() - begun)
        yield atoms


def drift(energies: FloatArray, interval: float) -> tuple[float, float]:
    """Slope of a line through the mean energies of ten pieces of a run, and its standard error.

    Energies that follow one another are alike; means of long pieces are not, so that their scatter
    about the line tells how well it is known.
    """
    ends = len(energies) // PIECES * PIECES
    means = energies[:ends].reshape(PIECES, -1).mean(1)
    at = interval * (ends // PIECES) * np.arange(PIECES)
    at = at - at.mean()
    slope = float(at @ means / (at @ at))
    rest = means - means.mean() - slope * at
    return slope, float(np.sqrt(rest @ rest / (PIECES - 2) / (at @ at)))
