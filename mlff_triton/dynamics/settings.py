"""Settings of a run: its stages and their conditions."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from mlff_triton.dynamics.stages import (
    Span,
    Stage,
    Temperature,
    check_conditions,
    check_positive,
)
from mlff_triton.errors import InputError

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
RANGES = {
    "every": (1, None),
    "log_every": (1, None),
    "exchange_every": (0, None),
    "threads": (1, 1024),
}


@dataclass(frozen=True)
class Settings:
    """Stages of a run, and the conditions of stages without their own.

    Attributes
    ----------
    stages : tuple of Stage
        Stages, which run one after another and write to one trajectory.
    temperature : float or tuple of float
        Temperature of the thermostats in K, of all replicas or of each. The initial velocities have
        the temperature of the first stage.
    heat_from : float or None
        Temperature in K at the start; it rises linearly to that of the first stage.
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
        Relaxation time of the volume in fs, if the system has the given compressibility.
    compressibility : float
        Estimate in 1/bar; by default, the value of water. The volume of a system that is n times
        less compressible relaxes n times as fast, but never by more than a tenth per action of the
        barostat, every 10 steps. The distribution of volumes depends neither on this estimate nor
        on ``barostat_time``.
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
    keep_velocities : bool
        If True, start with the velocities of the structures, and otherwise with random ones.
    reactive : bool
        If True, bonds may break. Otherwise, the run ends with an error once a covalent bond of the
        start is gone.
    hydrogen_mass : float or None
        Mass of hydrogen atoms in amu, taken from the atoms that they are bonded to; by default, the
        natural mass.
    trajectory : {"xyz", "dcd", "xtc"}
        Format of the trajectory.
    threads : int or None
        Number of threads of PyTorch on the host; the last bits of results may depend on it. By
        default, one per 128 atoms, within PyTorch's own number when the run starts.

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
    keep_velocities: bool = False
    reactive: bool = False
    hydrogen_mass: float | None = None
    trajectory: str = "xyz"
    threads: int | None = None

    def __post_init__(self) -> None:
        check_conditions(self.temperature, self.pressure)
        for name in POSITIVE:
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name, (least, most) in RANGES.items():
            if getattr(self, name) is not None:
                _check_range(name, getattr(self, name), least, most)
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must not be negative, nor exceed 63 bits, not {self.seed}")
        if not self.stages:
            raise InputError("a run needs at least one stage")
        if self.keep_velocities and self.minimize:
            raise InputError(
                "minimize takes velocities away: leave it out to keep those of the structure"
            )
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

    def target(self, step: int, temperature: float) -> float:
        """Return the temperature of a thermostat at a step, given the stage's temperature, in K."""
        stop = self.spans[0].stop
        if self.heat_from is None or step >= stop:
            return temperature
        return self.heat_from + (temperature - self.heat_from) * step / stop

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
    """Undo the conversion of the temperatures of replicas by JSON."""
    given = values["temperature"]
    return {**values, "temperature": tuple(given) if isinstance(given, list) else given}


def _check_range(name: str, value: int, least: int, most: int | None) -> None:
    """Raise `InputError` unless a value is in its range."""
    if value < least:
        raise InputError(f"{name} must be at least {least}, not {value}")
    if most is not None and value > most:
        raise InputError(f"{name} must be at most {most}, not {value}")
