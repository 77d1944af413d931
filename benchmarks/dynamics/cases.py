"""The cases of bench "md", and the lengths of its simulations.

All simulations are Langevin dynamics at 300 K with a friction of 5/ps and time steps of 0.5 fs,
except for ``ase-verlet``, which is NVE, and the cases ``npt-*``, which add a barostat. The cases
``*-grid-*`` start from water on a grid at 1.0 g/cc, as a user's first simulation may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.systems import systems
from benchmarks.systems.systems import System

TIME_STEP = 0.5  # fs
TEMPERATURE = 300.0  # K
FRICTION = 5.0  # 1/ps
FRAME_EVERY = 500  # steps between frames of the command
PICOSECOND = int(1000 / TIME_STEP)  # steps

OURS = ("command", "engine", "ase", "ase-verlet", "openmm", "openmm-host", "torch-sim")
PEERS = ("torchmd-net-ase", "torchmd-net-openmm", "torchmd-net-openmm-host")
IMPLEMENTATIONS = (*OURS, *PEERS)
COMMAND = ("command", "engine")
CHARGED = tuple(name for name in IMPLEMENTATIONS if name == "engine" or "openmm" in name)


@dataclass(frozen=True)
class Case:
    """A system to simulate.

    Attributes
    ----------
    name : str
        Name in the results.
    build : callable
        Return the system before it is melted.
    ms : float
        Approximate time per step of the command on an H200, which sets its number of steps.
    hold : int
        Steps at 300 K that melt the system in its ensemble; zero for systems that are not melted.
    repeats : int
        Copies of the melted system along each axis.
    settle : int
        Steps at 300 K after the system is repeated, which make the copies differ.
    model : str
        Key of `benchmarks.systems.models.MODELS`.
    ensemble : {"nvt", "npt"}
        Ensemble of the command.
    replicas : int
        Copies of the first system that the command simulates side by side.
    steps : int, optional
        Steps of the command; by default as many as take six seconds. Plans without time for the
        command make few.
    log_every : int
        Steps between log rows of the command.
    implementations : tuple of str
        Implementations that take part.
    wall : float, optional
        Radius in Å of a sphere in which OpenMM keeps the atoms.
    """

    name: str
    build: Callable[[], System]
    ms: float
    hold: int = 0
    repeats: int = 1
    settle: int = 0
    model: str = "shipped"
    ensemble: str = "nvt"
    replicas: int = 1
    steps: int | None = None
    log_every: int = 100
    implementations: tuple[str, ...] = IMPLEMENTATIONS
    wall: float | None = None


@dataclass(frozen=True)
class Plan:
    """Lengths of simulations.

    Attributes
    ----------
    seconds : float
        Least time for which implementations in this process are measured.
    chunk : int
        Least number of steps between readings of the clock, unless these take too long.
    patience : float
        Longest time between readings of the clock, s.
    chunks : int
        Least number of readings.
    warm_up : int
        Steps before the measurement.
    command_seconds : float
        Time that the steps of the command should take.
    command_steps : int
        Least number of steps of the command.
    command_runs : int
        Runs of the command, each of which gives one time.
    heating : int
        Steps in which systems are heated to 300 K after a minimization; zero for neither.
    longest : int
        Largest number of steps for which systems are melted.
    """

    seconds: float = 3.0
    chunk: int = 100
    patience: float = 1.5
    chunks: int = 3
    warm_up: int = 100
    command_seconds: float = 6.0
    command_steps: int = 200
    command_runs: int = 1
    heating: int = PICOSECOND // 2
    longest: int = 1_000_000

    @classmethod
    def of(cls, device: torch.device) -> Plan:
        """Return the plan for a device; on CPUs, it only shows that everything works."""
        return cls() if device.type == "cuda" else QUICK

    def steps(self, case: Case) -> int:
        """Return the number of steps of the command, in whole intervals of its log."""
        wanted = int(max(self.command_steps, 1000 * self.command_seconds / case.ms))
        every = self.log_every(case)
        steps = case.steps if case.steps and self.command_seconds else wanted
        return max(steps // every, 1) * every

    def has_temperature(self, case: Case) -> bool:
        """Return True if the temperature is known: that of systems melted for long enough."""
        return 0 < case.hold <= self.longest

    def log_every(self, case: Case) -> int:
        """Return the number of steps between log rows of the command."""
        return min(case.log_every, self.command_steps // 2)


QUICK = Plan(
    seconds=0.0,
    chunk=2,
    chunks=2,
    warm_up=1,
    command_seconds=0.0,
    command_steps=4,
    heating=0,
    longest=2,
)


def _water(n_molecules: int, ms: float, repeats: int = 1) -> Case:
    """Return a case of water that is melted for 5 ps and, if repeated, settles for 1 ps."""
    name = str(3 * n_molecules * repeats**3)
    settle = PICOSECOND if repeats > 1 else 0
    build = partial(systems.water, n_molecules)
    return Case(name, build, ms, 5 * PICOSECOND, repeats, settle)


def _npt(n_molecules: int, ms: float) -> Case:
    """Return a case of water at a pressure, at which it melts and finds its volume in 10 ps."""
    return Case(
        f"npt-{3 * n_molecules}",
        partial(systems.water, n_molecules),
        ms,
        10 * PICOSECOND,
        ensemble="npt",
        implementations=COMMAND,
    )


def _grid(n_molecules: int, ensemble: str) -> Case:
    """Return a case of 10,000 steps of water that begins on a grid, at 1.0 g/cc."""
    return Case(
        f"{ensemble}-grid-{3 * n_molecules}",
        partial(systems.water, n_molecules),
        1.0,
        ensemble=ensemble,
        steps=10_000,
        implementations=COMMAND[:1],
    )


def _random(name: str, n_atoms: int, ms: float, steps: int, log_every: int = 100) -> Case:
    return Case(
        name,
        partial(systems.random_box, n_atoms),
        ms,
        model="random",
        steps=steps,
        log_every=log_every,
        implementations=COMMAND,
    )


def _charged(n_atoms: int, ms: float, wall: float | None = None) -> Case:
    """Return a case of a TensorNet2, whose atoms only repel each other strongly."""
    build = partial(systems.random_box, n_atoms)
    name = f"charged-{n_atoms}"
    return Case(name, build, ms, model="repulsive", implementations=CHARGED, wall=wall)


_REPLICAS = 256

CASES: tuple[Case, ...] = (  # cubic numbers of molecules fill the box
    _water(7, 0.13),
    _water(64, 0.18),
    _water(343, 0.35),
    _water(1331, 0.85),
    _water(729, 3.1, repeats=2),
    _water(2744, 11.0, repeats=2),
    _npt(343, 0.4),
    _npt(1331, 0.9),
    *(_grid(n, ensemble) for n in (343, 1331) for ensemble in ("nvt", "npt")),
    Case(
        f"{_REPLICAS}xaspirin",
        partial(systems.conformers, "aspirin", _REPLICAS),
        1.2,
        2 * PICOSECOND,
        replicas=_REPLICAS,
        implementations=(*COMMAND, "torch-sim"),
    ),
    # Random forces pull atoms together, so that neighbors and thus times grow from step to step.
    _random("random-1024", 1024, 0.6, 400),
    _random("random-4096", 4096, 1.7, 400),
    _random("random-65536", 65536, 23.0, 200),
    _random("1000000", 1_000_000, 340.0, 40, log_every=20),
    _charged(21, 0.6, wall=6.0),
    _charged(1024, 2.6),
    _charged(4096, 7.8),
    _charged(65536, 120.0),
)
