"""What to simulate: stages, their conditions, and the questions that the driver asks of them."""

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
        What is held constant.
    steps : int
        Number of time steps, at least one.

    Raises
    ------
    InputError
        If the ensemble is unknown or there are no steps.
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
    """Where a stage lies on the clock of the run: it takes steps ``start + 1`` to ``stop``."""

    label: str
    ensemble: str
    start: int
    stop: int


@dataclass(frozen=True)
class Settings:
    """Conditions of a run, the same in all of its stages.

    Attributes
    ----------
    stages : tuple of Stage
        Run one after another, in one trajectory.
    temperature : float
        K; of the initial velocities and of the thermostats.
    pressure : float
        bar; of the barostat.
    timestep : float
        fs.
    friction : float
        1/ps; of the Langevin thermostat.
    every : int
        Steps between two frames, log rows and restarts.
    seed : int
        Seed of the one random stream of the run.
    minimize : bool
        Whether to relax the structure first.

    Raises
    ------
    InputError
        If a value makes no sense.
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
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    @property
    def spans(self) -> list[Span]:
        """The stages on the clock of the run, with a label each ("1-nvt")."""
        spans = []
        start = 0
        for number, stage in enumerate(self.stages, 1):
            label = f"{number}-{stage.ensemble}"
            spans.append(Span(label, stage.ensemble, start, start + stage.steps))
            start += stage.steps
        return spans

    def span_of(self, step: int) -> Span:
        """Find the stage that took this step; the first one for step 0."""
        return next(span for span in self.spans if step <= span.stop)

    def is_due(self, step: int) -> bool:
        """Whether this step is recorded: every so often, and at the end of a stage."""
        return step % self.every == 0 or any(step == span.stop for span in self.spans)

    def time(self, step: int) -> float:
        """Return the time of a step in ps."""
        return step * self.timestep / 1000

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Undo `to_dict`."""
        stages = tuple(Stage(**stage) for stage in values["stages"])
        return cls(**{**values, "stages": stages})


def stages_of(ensembles: list[str], steps: list[int]) -> tuple[Stage, ...]:
    """Pair ensembles with step counts; a single count serves all.

    Raises
    ------
    InputError
        If the numbers of both do not match.
    """
    if len(steps) == 1:
        steps = steps * len(ensembles)
    if len(steps) != len(ensembles):
        raise InputError(
            f"{len(ensembles)} ensembles and {len(steps)} step counts: give one count for all, "
            "or one each"
        )
    return tuple(Stage(*pair) for pair in zip(ensembles, steps, strict=True))
