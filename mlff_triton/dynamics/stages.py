"""Stages of a run: their ensembles, lengths and conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlff_triton.errors import InputError

ENSEMBLES = ("nve", "nvt", "npt")
Temperature = float | tuple[float, ...]  # K; of all replicas, or of each


def check_conditions(temperature: Temperature | None, pressure: float | None) -> None:
    """Raise an `InputError` unless given temperatures are positive and a pressure is a number."""
    for value in temperature if isinstance(temperature, tuple) else (temperature,):
        if value is not None:
            check_positive("temperature", value)
    if pressure is not None and not math.isfinite(pressure):
        raise InputError(f"pressure must be a number, not {pressure:g}")


def check_positive(name: str, value: float) -> None:
    """Raise an `InputError` unless a value is a positive number."""
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
        check_conditions(self.temperature, self.pressure)


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
    """Return a value per stage, given one per stage or one for all.

    Raises
    ------
    InputError
        If the numbers differ.
    """
    if len(values) not in (1, n_stages):
        raise InputError(
            f"{n_stages} ensembles and {len(values)} {name}: give one for all, or one per ensemble"
        )
    return list(values) * (n_stages if len(values) == 1 else 1)
