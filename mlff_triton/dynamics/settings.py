"""Settings of a run: its stages and their conditions."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from mlff_triton.errors import InputError

ENSEMBLES = ("nve", "nvt", "npt")


@dataclass(frozen=True)
class Stage:
    """A number of steps in one ensemble.

    Attributes
    ----------
    ensemble : {"nve", "nvt", "npt"}
        Ensemble: constant energy, temperature, or temperature and pressure.
    steps : int
        Number of time steps, at least one.

    Raises
    ------
    InputError
        If the ensemble is unknown or the number of steps is less than one.
    """

    ensemble: str
    steps: int

    def __post_init__(self) -> None:
        if self.ensemble not in ENSEMBLES:
            raise InputError(
                f"ensemble {self.ensemble!r} is unknown: use one of {', '.join(ENSEMBLES)}"
            )
        if self.steps < 1:
            raise InputError(f"a stage needs at least one step, not {self.steps}")


@dataclass(frozen=True)
class Span:
    """The range of time steps of a stage, from ``start + 1`` to ``stop``."""

    label: str
    ensemble: str
    start: int
    stop: int


@dataclass(frozen=True)
class Settings:
    """Stages of a run, and the conditions that they share.

    Attributes
    ----------
    stages : tuple of Stage
        Stages, which run one after another and write to one trajectory.
    temperature : float
        Temperature in K of the initial velocities and of the thermostats.
    pressure : float
        Pressure of the barostat in bar.
    timestep : float
        Time step in fs.
    friction : float
        Friction of the Langevin thermostat in 1/ps.
    every : int
        Number of steps between frames, log rows and restarts.
    seed : int
        Seed of the random stream, which the initial velocities and the thermostat share.
    minimize : bool
        If True, minimize the energy first.

    Raises
    ------
    InputError
        If a value is out of range.
    """

    stages: tuple[Stage, ...] = (Stage("nvt", 2000),)
    temperature: float = 300.0
    pressure: float = 1.0
    timestep: float = 0.5
    friction: float = 5.0
    every: int = 20
    seed: int = 0
    minimize: bool = False

    def __post_init__(self) -> None:
        if not self.stages:
            raise InputError("a run needs at least one stage")
        for name in ("temperature", "timestep", "friction"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} must be a positive number, not {value:g}")
        if not math.isfinite(self.pressure):
            raise InputError(f"pressure must be a number, not {self.pressure:g}")
        if self.every < 1:
            raise InputError(f"every must be at least one step, not {self.every}")
        if self.seed < 0:
            raise InputError(f"seed must not be negative, not {self.seed}")

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
            spans.append(Span(label, stage.ensemble, start, start + stage.steps))
            start += stage.steps
        return spans

    def span_of(self, step: int) -> Span:
        """Return the stage that a step belongs to. Step 0 belongs to the first one."""
        return next(span for span in self.spans if step <= span.stop)

    def is_due(self, step: int) -> bool:
        """Return True if a step is recorded: regularly, and at the end of each stage."""
        return step % self.every == 0 or any(step == span.stop for span in self.spans)

    def time(self, step: int) -> float:
        """Return the simulated time at a step, ps."""
        return step * self.timestep / 1000

    def to_dict(self) -> dict[str, Any]:
        """Convert to numbers, strings and lists, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Make settings from the result of `to_dict`."""
        stages = tuple(Stage(**stage) for stage in values["stages"])
        return cls(**{**values, "stages": stages})


def stages_of(ensembles: list[str], steps: list[int]) -> tuple[Stage, ...]:
    """Combine ensembles and numbers of steps into stages.

    Parameters
    ----------
    ensembles : list of str
        Ensemble of each stage.
    steps : list of int
        Number of steps of each stage, or one number for all.

    Returns
    -------
    tuple of Stage

    Raises
    ------
    InputError
        If the lists do not match, or a stage is invalid.

    Examples
    --------
    >>> stages_of(["nvt", "nve"], [500])
    (Stage(ensemble='nvt', steps=500), Stage(ensemble='nve', steps=500))
    """
    if len(steps) == 1:
        steps = steps * len(ensembles)
    if len(steps) != len(ensembles):
        raise InputError(
            f"{len(ensembles)} ensembles and {len(steps)} step counts: give one count for all, "
            "or one per ensemble"
        )
    return tuple(Stage(*pair) for pair in zip(ensembles, steps, strict=True))
