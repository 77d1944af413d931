"""Errors of energies and forces along simulations, drifts of the total energy, and equal bits.

NVE at 300 K with the shipped model, velocity Verlet, 0.5 fs. Column ``error`` holds, by case:

- ``nve-energy-*``: largest error of the energy against the exact module in float64, kcal/mol;
- ``nve-forces-*``: largest error of a force over the largest true force of that step;
- ``drift-*``: absolute slope of the total energy, eV/atom/ps;
- ``drift-*-sigma``: standard error of that slope;
- ``long-*`` and ``long-*-sigma``: the same for long simulations of `mlff_triton.dynamics`;
- ``bits-*``: largest difference of a position, in Å, between two such simulations.

Times are those of a step of ASE, of OpenMM for ``openmm``, or of `mlff_triton.dynamics` for
``simulation``, by the host's clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet
from ase.optimize import FIRE
from numpy.typing import NDArray

from benchmarks.calculators.openmm_forces import PLATFORMS, make_context
from benchmarks.lab.guards import at_most, clean_up
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from benchmarks.systems import systems
from benchmarks.systems.models import model
from benchmarks.systems.systems import System
from mlff_triton._common.timing import Timing
from mlff_triton.calculators import TensorNetCalculator, create_openmm_force
from mlff_triton.dynamics import Settings, Stage
from mlff_triton.dynamics.conditions import conditions_of
from mlff_triton.dynamics.preparation import draw_momenta
from mlff_triton.dynamics.systems import make_dynamics, state_of
from mlff_triton.engine.motion import Observation
from mlff_triton.units import EV_TO_KCAL_PER_MOL, EV_TO_KJ_PER_MOL, NM

TIME_STEP = 0.5  # fs
TEMPERATURE = 300.0  # K, once half of the kinetic energy at the start has become potential energy
PIECES = 10

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Length:
    """Length of a simulation.

    Attributes
    ----------
    steps : int
        Number of steps.
    every : int
        Steps between two frames that are examined.
    settle : int
        Steps at the start whose frames do not count towards a drift. Verlet's total energy differs
        from the one that it conserves by an amount that changes while a packed liquid melts.
    """

    steps: int
    every: int
    settle: int = 0

    @property
    def frames(self) -> int:
        """Number of frames that are examined."""
        return self.steps // self.every


@dataclass(frozen=True)
class Plan:
    """Lengths of simulations and the largest errors that pass.

    Attributes
    ----------
    nve, drift : Length
        Simulations compared with the truth, and those whose drift is measured.
    long : mapping of str to Length
        Simulations of `mlff_triton.dynamics` whose drift is measured, by system.
    bits : Length
        Simulations that are run twice.
    energy_limit : float
        Largest error of an energy, kcal/mol: the engine's promise in float64.
    force_limit : float
        Largest relative error of a force.
    drift_limit : float
        Largest drift, eV/atom/ps.
    long_limit : float
        The same of long simulations.
    """

    nve: Length = Length(1000, 10)
    drift: Length = Length(200_000, 10)
    long: Mapping[str, Length] = field(
        default_factory=lambda: {
            "aspirin": Length(2_000_000, 50),
            "water-1029": Length(250_000, 50, settle=50_000),
        }
    )
    bits: Length = Length(1_000_000, 1000)
    energy_limit: float = 1e-6
    force_limit: float = 1e-5
    drift_limit: float = 1e-6
    long_limit: float = 1e-7


PLAN = Plan()


@dataclass(frozen=True)
class Simulation:
    """A backend and precision to simulate with, through ASE, in cases of some kinds."""

    kinds: ClassVar = ("nve", "drift")

    name: str
    dtype: str
    backend: str

    def calculator(self, device: str) -> TensorNetCalculator:
        """Return the shipped model with this backend and precision."""
        return TensorNetCalculator(
            model("shipped"), device=device, dtype=self.dtype, backend=self.backend
        )

    def total_energies(
        self, atoms: Atoms, device: str, length: Length, times: list[float]
    ) -> Iterator[float]:
        """Yield the total energy of each frame, eV; append the seconds per step to ``times``."""
        atoms.calc = self.calculator(device)
        for moved in simulate(atoms, length, times):
            yield moved.get_total_energy()


class OpenMMSimulation(Simulation):
    """The same through OpenMM's Verlet integrator, on its fastest platform."""

    kinds: ClassVar = ("drift",)

    def total_energies(
        self, atoms: Atoms, device: str, length: Length, times: list[float]
    ) -> Iterator[float]:
        """Yield the total energy of each frame, eV; append the seconds per step to ``times``."""
        import openmm

        force = create_openmm_force(
            atoms.numbers, model("shipped"), device=device, dtype=self.dtype, backend=self.backend
        )
        system = System.of([atoms])
        platform = PLATFORMS[torch.device(device).type]
        properties = {"Precision": "mixed"} if platform == "CUDA" else None
        integrator = openmm.VerletIntegrator(TIME_STEP / 1000)
        context = make_context(system, [force], integrator, platform, properties)
        context.setPositions(atoms.positions / NM)
        context.setVelocities(atoms.get_velocities() * (1000 * units.fs / NM))
        for _ in range(length.frames):
            begun = time.perf_counter()
            integrator.step(length.every)
            times.append((time.perf_counter() - begun) / length.every)
            state = context.getState(energy=True)
            total = state.getPotentialEnergy() + state.getKineticEnergy()
            yield total._value / EV_TO_KJ_PER_MOL


class OwnSimulation(Simulation):
    """The same by `mlff_triton.dynamics`, on the GPU if there is one."""

    kinds: ClassVar = ("drift", "long", "bits")

    def total_energies(
        self, atoms: Atoms, device: str, length: Length, times: list[float]
    ) -> Iterator[float]:
        """Yield the total energy of each frame, eV; append the seconds per step to ``times``."""
        masses = atoms.get_masses()[:, None]
        for seen in self.observations(atoms, device, length, times):
            yield float(seen.energy[0] + 0.5 * (masses * seen.state.velocities**2).sum())

    def observations(
        self, atoms: Atoms, device: str, length: Length, times: list[float]
    ) -> Iterator[Observation]:
        """Yield what can be observed of each frame; append the seconds per step to ``times``."""
        dynamics = make_dynamics([atoms], self.calculator(device))
        settings = Settings(stages=(Stage("nve", length.steps),), timestep=TIME_STEP)
        conditions = conditions_of(settings, settings.spans[0], [atoms], [TEMPERATURE])
        dynamics.begin(state_of([atoms]), conditions, is_continued=False)
        begun, queued = time.perf_counter(), 0
        for collected in range(length.frames):
            while queued < min(collected + dynamics.depth, length.frames):
                queued += 1
                dynamics.queue(queued * length.every, is_observed=True)
            seen = dynamics.collect()
            now = time.perf_counter()
            times.append((now - begun) / length.every)
            begun = now
            if seen is not None:  # as all are to be observed
                yield seen


SIMULATIONS = {
    simulation.name: simulation
    for simulation in (
        Simulation("engine", "float32", "auto"),
        Simulation("engine-float64", "float64", "auto"),
        Simulation("exact", "float32", "exact"),
        OpenMMSimulation("openmm", "float32", "auto"),
        OwnSimulation("simulation", "float32", "auto"),
    )
}
TRUTH = Simulation("exact-float64", "float64", "exact")

NVE = {"aspirin": partial(systems.molecule, "aspirin"), "water-192": partial(systems.water, 64)}
DRIFT = {"aspirin": partial(systems.molecule, "aspirin")}
LONG = DRIFT | {"water-1029": partial(systems.water, 343)}
BUILDERS = {"nve": NVE, "drift": DRIFT, "long": LONG, "bits": DRIFT}
CASES = tuple(f"{kind}-{name}" for kind, builders in BUILDERS.items() for name in builders)


def run_fidelity(
    lab: Lab, cases: Sequence[str], simulations: Sequence[Simulation], plan: Plan = PLAN
) -> None:
    """Run each case with each simulation that supports it."""
    for case in cases:
        kind, name = case.split("-", 1)
        examine = {"nve": _nve, "drift": _drift, "long": _long, "bits": _bits}[kind]
        for simulation in simulations:
            if kind not in simulation.kinds:
                continue
            if lab.budget.left <= 0:
                lab.skip(f"fidelity {case} {simulation.name}", "the time is up")
                continue
            clean_up(lab.device)
            try:
                with at_most(lab.budget.left_for_one):
                    examine(lab, name, simulation, plan)
            except Exception as error:  # noqa: BLE001 - a failure must not stop the run
                lab.complain(f"fidelity {case} {simulation.name}", error)


def _nve(lab: Lab, name: str, simulation: Simulation, plan: Plan) -> None:
    """Compare energies and forces along a simulation with the truth at the same positions."""
    system = NVE[name]()
    atoms = start(system, str(lab.device))
    truth = atoms.copy()
    truth.calc = TRUTH.calculator(str(lab.device))
    atoms.calc = simulation.calculator(str(lab.device))
    energy_error = force_error = 0.0
    times: list[float] = []
    for _ in simulate(atoms, plan.nve, times):
        truth.positions = atoms.positions
        expected = truth.get_forces()
        difference = atoms.get_potential_energy() - truth.get_potential_energy()
        energy_error = max(energy_error, abs(difference) * EV_TO_KCAL_PER_MOL)
        off = np.abs(atoms.get_forces() - expected).max() / np.abs(expected).max()
        force_error = max(force_error, float(off))
    measured = {
        f"nve-energy-{name}": (energy_error, plan.energy_limit),
        f"nve-forces-{name}": (force_error, plan.force_limit),
    }
    _report(lab, simulation, system, times, measured)


def _drift(lab: Lab, name: str, simulation: Simulation, plan: Plan) -> None:
    _slope(lab, f"drift-{name}", DRIFT[name](), simulation, plan.drift, plan.drift_limit)


def _long(lab: Lab, name: str, simulation: Simulation, plan: Plan) -> None:
    _slope(lab, f"long-{name}", LONG[name](), simulation, plan.long[name], plan.long_limit)


def _slope(
    lab: Lab, case: str, system: System, simulation: Simulation, length: Length, limit: float
) -> None:
    """Measure the slope of the total energy over a simulation."""
    atoms = start(system, str(lab.device))
    times: list[float] = []
    totals = list(simulation.total_energies(atoms, str(lab.device), length, times))
    picoseconds = length.every * TIME_STEP / 1000
    counted = np.array(totals[length.settle // length.every :])
    slope, sigma = drift(counted / system.n_atoms, picoseconds)
    measured = {case: (abs(slope), limit), f"{case}-sigma": (sigma, limit)}
    _report(lab, simulation, system, times, measured)


def _bits(lab: Lab, name: str, simulation: OwnSimulation, plan: Plan) -> None:
    """Run a simulation twice, and compare all frames."""
    system = DRIFT[name]()
    atoms = start(system, str(lab.device))
    times: list[float] = []
    runs = [
        simulation.observations(atoms, str(lab.device), plan.bits, times if k == 0 else [])
        for k in range(2)
    ]
    first = [seen.state.positions for seen in runs[0]]
    off = [
        float(np.abs(seen.state.positions - positions).max())
        for seen, positions in zip(runs[1], first, strict=True)
    ]
    _report(lab, simulation, system, times, {f"bits-{name}": (max(off), 0.0)})


def _report(
    lab: Lab,
    simulation: Simulation,
    system: System,
    times: list[float],
    measured: dict[str, tuple[float, float]],
) -> None:
    """Report a row per case, without a time where the error exceeds the limit."""
    size = system.n_atoms, system.count_edges(model("shipped").cutoff)
    p20, p50, p80 = (1e3 * np.quantile(times, [0.2, 0.5, 0.8])).tolist()
    for case, (error, limit) in measured.items():
        timing = Timing(p20, p50, p80, None) if error <= limit else None
        lab.report(make_row("fidelity", case, simulation.name, size, lab.where, timing, error))


def start(system: System, device: str) -> Atoms:
    """Relax a system and draw its momenta, with the truth: the same start for all simulations."""
    periodic = system.cell is not None
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=periodic)
    atoms.calc = TRUTH.calculator(device)
    FIRE(atoms, logfile=None).run(fmax=0.1, steps=100)
    draw_momenta(atoms, 2 * TEMPERATURE, np.random.default_rng(0))
    atoms.calc = None
    return atoms


def simulate(atoms: Atoms, length: Length, times: list[float]) -> Iterator[Atoms]:
    """Yield the atoms at each frame; append the seconds of each step to ``times``."""
    dynamics = VelocityVerlet(atoms, timestep=TIME_STEP * units.fs)
    for _ in range(length.frames):
        for _ in range(length.every):
            begun = time.perf_counter()
            dynamics.step()
            times.append(time.perf_counter() - begun)
        yield atoms


def drift(energies: FloatArray, interval: float) -> tuple[float, float]:
    """Return the slope of a line through the mean energies of ten pieces, and its standard error.

    Successive energies are correlated, means of long pieces are not, so the scatter of the means
    about the line gives its uncertainty.
    """
    ends = len(energies) // PIECES * PIECES
    means = energies[:ends].reshape(PIECES, -1).mean(1)
    at = interval * (ends // PIECES) * np.arange(PIECES)
    at = at - at.mean()
    slope = float(at @ means / (at @ at))
    residual = means - means.mean() - slope * at
    return slope, float(np.sqrt(residual @ residual / (PIECES - 2) / (at @ at)))
