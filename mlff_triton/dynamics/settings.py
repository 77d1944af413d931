"""Settings of a run: its stages and their conditions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlff_triton.errors import InputError

ENSEMBLES = ("nve", "nvt", "npt")
Temperature = float | tuple[float, ...]  # K; of all replicas, or of each


def _check_conditions(temperature: Temperature | None, pressure: float | None) -> None:
    for value in temperature if isinstance(temperature, tuple) else (temperature,):
        if value is not None:
            _check_positive("temperature", value)
    if pressure is not None and not math.isfinite(pressure):
        raise InputError(f"pressure must be a number, not {pressure:g}")


def _check_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a positive number, not {value:g}")


@dataclass(frozen=True)
class Stage:
    """A number of steps in one ensemble.

    Attributes
    ----------
    ensemble : {"nve", "nvt", "npt"}
        Ensemble: constant energy, temperature, or temperature and pressure.
    steps : int
        Number of time steps, at least one.
    temperature, pressure : optional
        As in `Settings`, whose values are used by default.

    Raises
    ------
    InputError
        If the ensemble is unknown, or a number is out of range.
    """

    ensemble: str
    steps: int
    temperature: Temperature | None = None
    pressure: float | None = None

    def __post_init__(self) -> None:
        if self.ensemble not in ENSEMBLES:
            raise InputError(
                f"ensemble {self.ensemble!r} is unknown: use one of {', '.join(ENSEMBLES)}"
            )
        if self.steps < 1:
            raise InputError(f"a stage needs at least one step, not {self.steps}")
        _check_conditions(self.temperature, self.pressure)


@dataclass(frozen=True)
class Span:
    """The time steps of a stage, from ``start + 1`` to ``stop``, and its conditions."""

    label: str
    ensemble: str
    start: int
    stop: int
    temperature: Temperature
    pressure: float

    def temperatures(self, n_systems: int) -> tuple[float, ...]:
        """Return the temperature of each replica in K.

        Raises
        ------
        InputError
            If there are more or fewer temperatures than replicas.
        """
        if not isinstance(self.temperature, tuple):
            return (self.temperature,) * n_systems
        if len(self.temperature) != n_systems:
            raise InputError(
                f"{n_systems} replicas need {n_systems} temperatures, or one, not "
                f"{len(self.temperature)}"
            )
        return self.temperature


CHOICES = {
    "thermostat": ("langevin", "rescaling"),
    "barostat": ("isotropic", "anisotropic"),
    "trajectory": ("xyz", "dcd", "xtc"),
}
POSITIVE = (
    "timestep",
    "friction",
    "thermostat_time",
    "barostat_time",
    "compressibility",
    "heat_from",
    "hydrogen_mass",
)
LEAST = {"every": 1, "log_every": 1, "exchange_every": 0, "threads": 1}


@dataclass(frozen=True)
class Settings:
    """Stages of a run, and the conditions of those that have none of their own.

    Attributes
    ----------
    stages : tuple of Stage
        Stages, which run one after another and write to one trajectory.
    temperature : float or tuple of float
        Temperature of the thermostats in K, of all replicas or of each. The initial velocities
        have that of the first stage.
    heat_from : float or None
        Temperature in K at the start, from which that of the first stage rises linearly.
    pressure : float
        Pressure of the barostat in bar.
    timestep : float
        Time step in fs.
    thermostat : {"langevin", "rescaling"}
        Langevin dynamics, which acts on every atom, or stochastic rescaling of all velocities,
        which disturbs diffusion least.
    friction : float
        Friction of the Langevin thermostat in 1/ps.
    thermostat_time : float
        Relaxation time of the rescaling thermostat in fs.
    barostat : {"isotropic", "anisotropic"}
        Stochastic rescaling of the cell, which keeps its shape or not.
    barostat_time : float
        Relaxation time of the volume in fs.
    compressibility : float
        Estimate in 1/bar, by default that of water. It only influences the relaxation time.
    every : int
        Number of steps between frames and restarts.
    log_every : int or None
        Number of steps between log rows; by default as for frames.
    exchange_every : int
        Number of steps between exchanges of temperatures among replicas; 0 for none.
    seed : int
        Key of all random numbers.
    minimize : bool
        If True, minimize the energy first.
    hydrogen_mass : float or None
        Mass of hydrogen atoms in amu, which is taken from the atoms that they are bonded to; by
        default the natural one.
    trajectory : {"xyz", "dcd", "xtc"}
        Format of the trajectory.
    threads : int or None
        Number of threads of PyTorch where the host computes, on which the last bits of results
        depend; by default one per 64 atoms, within PyTorch's own number when the run starts.

    Raises
    ------
    InputError
        If a value is out of range.
    """

    stages: tuple[Stage, ...] = (Stage("nvt", 2000),)
    temperature: Temperature = 300.0
    heat_from: float | None = None
    pressure: float = 1.0
    timestep: float = 0.5
    thermostat: str = "langevin"
    friction: float = 5.0
    thermostat_time: float = 100.0
    barostat: str = "isotropic"
    barostat_time: float = 1000.0
    compressibility: float = 4.5e-5
    every: int = 20
    log_every: int | None = None
    exchange_every: int = 0
    seed: int = 0
    minimize: bool = False
    hydrogen_mass: float | None = None
    trajectory: str = "xyz"
    threads: int | None = None

    def __post_init__(self) -> None:
        _check_conditions(self.temperature, self.pressure)
        for name in POSITIVE:
            if getattr(self, name) is not None:
                _check_positive(name, getattr(self, name))
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least}, not {value}")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must not be negative, nor exceed 63 bits, not {self.seed}")
        self._check_choices()

    def _check_choices(self) -> None:
        if not self.stages:
            raise InputError("a run needs at least one stage")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(
                    f"{name} {getattr(self, name)!r} is unknown: use one of {', '.join(known)}"
                )

    @property
    def total_steps(self) -> int:
        """Total number of steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    @property
    def spans(self) -> list[Span]:
        """Time steps and label, such as "1-nvt", of each stage."""
        spans = []
        start = 0
        for number, stage in enumerate(self.stages, 1):
            label = f"{number}-{stage.ensemble}"
            stop = start + stage.steps
            temperature = self.temperature if stage.temperature is None else stage.temperature
            pressure = self.pressure if stage.pressure is None else stage.pressure
            spans.append(Span(label, stage.ensemble, start, stop, temperature, pressure))
            start = stop
        return spans

    def span_of(self, step: int) -> Span:
        """Return the stage that a step belongs to. Step 0 belongs to the first one."""
        return next(span for span in self.spans if step <= span.stop)

    def is_due(self, step: int) -> bool:
        """Return True if a frame of a step is recorded: regularly, and at the end of each stage."""
        return step % self.every == 0 or any(step == span.stop for span in self.spans)

    def is_logged(self, step: int) -> bool:
        """Return True if a step gets a log row: regularly, and with every frame."""
        return step % (self.log_every or self.every) == 0 or self.is_due(step)

    def is_exchanged(self, step: int) -> bool:
        """Return True if replicas may exchange their temperatures after a step."""
        return self.exchange_every > 0 and step > 0 and step % self.exchange_every == 0

    def extended(self, steps: int) -> Settings:
        """Return the settings of a run whose last stage is longer by a number of steps."""
        last = self.stages[-1]
        longer = dataclasses.replace(last, steps=last.steps + steps)
        return dataclasses.replace(self, stages=(*self.stages[:-1], longer))

    def time(self, step: int) -> float:
        """Return the simulated time at a step, ps."""
        return step * self.timestep / 1000

    def to_dict(self) -> dict[str, Any]:
        """Convert to numbers, strings and lists, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Make settings from the result of `to_dict`."""
        stages = tuple(Stage(**_with_tuple(stage)) for stage in values["stages"])
        return cls(**{**_with_tuple(values), "stages": stages})


def _with_tuple(values: dict[str, Any]) -> dict[str, Any]:
    """Undo what JSON does to the temperatures of replicas."""
    given = values["temperature"]
    return {**values, "temperature": tuple(given) if isinstance(given, list) else given}


def stages_of(
    ensembles: Sequence[str],
    steps: Sequence[int],
    temperatures: Sequence[Temperature | None] = (None,),
    pressures: Sequence[float | None] = (None,),
) -> tuple[Stage, ...]:
    """Combine ensembles, numbers of steps and conditions into stages.

    Parameters
    ----------
    ensembles : sequence of str
        Ensemble of each stage.
    steps : sequence of int
        Number of steps of each stage, or one for all.
    temperatures, pressures : sequence
        Conditions of each stage, or one for all; by default those of the `Settings`.

    Returns
    -------
    tuple of Stage

    Raises
    ------
    InputError
        If the sequences do not match, or a stage is invalid.

    Examples
    --------
    >>> [stage.temperature for stage in stages_of(["nvt", "nvt"], [500], [100.0, 300.0])]
    [100.0, 300.0]
    """
    columns = [
        one_per_stage(name, values, len(ensembles))
        for name, values in (
            ("step counts", steps),
            ("temperatures", temperatures),
            ("pressures", pressures),
        )
    ]
    return tuple(Stage(*row) for row in zip(ensembles, *columns, strict=True))


def one_per_stage(name: str, values: Sequence[Any], n_stages: int) -> list[Any]:
    """Return a value per stage, given as many or one for all.

    Raises
    ------
    InputError
        If there are more or fewer.
    """
    if len(values) not in (1, n_stages):
        raise InputError(
            f"{n_stages} ensembles and {len(values)} {name}: give one for all, or one per ensemble"
        )
    return list(values) * (n_stages if len(values) == 1 else 1)
