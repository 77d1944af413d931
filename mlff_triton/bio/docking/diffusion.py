"""Settings of DiffDock's reverse diffusion, and the factors of its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mlff_triton.errors import InputError


@dataclass(frozen=True)
class Component:
    """Diffusion of translations, rotations or torsions.

    Attributes
    ----------
    smallest, largest : float
        Noise at the times 0 and 1, in Å or radians.
    temperature : float
        Factor of low-temperature sampling; 1 for sampling without it.
    psi : float
        Part of the noise in low-temperature sampling.
    data : float
        Exponent, between 0 and 1, of the noise of the data in low-temperature sampling.
    speed : float
        Factor of the rate: 1, or the square root of 2 for rotations in DiffDock's release 1.0.
    """

    smallest: float
    largest: float
    temperature: float = 1.0
    psi: float = 0.0
    data: float = 0.5
    speed: float = 1.0

    def sigma(self, time: float) -> float:
        """Return the noise at a time between 0 and 1."""
        return float(self.smallest ** (1 - time) * self.largest**time)

    def factors(self, time: float, interval: float) -> Factors:
        """Return the factors of a step that begins at a time."""
        sigma = self.sigma(time)
        rate = self.speed * sigma * math.sqrt(2 * math.log(self.largest / self.smallest))
        if self.temperature == 1.0:
            return Factors(rate**2 * interval, rate * math.sqrt(interval))
        own = self.sigma(self.data)
        ratio = (own + sigma) / (own + sigma / self.temperature)
        return Factors(
            rate**2 * interval * (ratio + self.temperature * self.psi / 2),
            rate * math.sqrt(interval * (1 + self.psi)),
        )


class Factors(NamedTuple):
    """Factors of a score and of random numbers in an update."""

    score: float
    noise: float


class Step(NamedTuple):
    """A step of the diffusion.

    Attributes
    ----------
    time : float
        Time at its beginning.
    sigma : float
        Noise of translations, in Å.
    factors : tuple of Factors
        Factors of translations, rotations and torsions.
    """

    time: float
    sigma: float
    factors: tuple[Factors, Factors, Factors]


@dataclass(frozen=True)
class Diffusion:
    """Settings of a reverse diffusion, as in DiffDock's ``inference.py``.

    Attributes
    ----------
    translation, rotation, torsion : Component
        Translations, rotations and torsions.
    steps : int
        Number of equal intervals of time from 1 to 0.
    actual_steps : int or None
        Number of steps that are made; the last one goes to time 0. By default, all.
    noisy_end : bool
        If True, the last step adds noise.
    start : float
        Width of the distribution of the first positions: if negative, in units of minus the
        largest noise of translations, otherwise in units of the receptor's size.
    crop : float or None
        If given, residues farther from a ligand than this, in Å, plus three times the noise of
        translations are removed.
    no_torsion : bool
        True if ligands are rigid.

    Raises
    ------
    InputError
        If a number of steps is invalid.
    """

    translation: Component
    rotation: Component
    torsion: Component
    steps: int = 20
    actual_steps: int | None = None
    noisy_end: bool = False
    start: float = -1.0
    crop: float | None = None
    no_torsion: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InputError(f"steps={self.steps} is not valid: use at least 1")
        if self.actual_steps is not None and not 1 <= self.actual_steps <= self.steps:
            raise InputError(
                f"actual_steps={self.actual_steps} is not valid: use 1 to {self.steps}, the number "
                "of steps"
            )

    @property
    def count(self) -> int:
        """Number of steps that are made."""
        return self.steps if self.actual_steps is None else self.actual_steps

    def __iter__(self) -> Iterator[Step]:
        """Yield the steps."""
        for index in range(self.count):
            time = 1 - index / self.steps
            is_last = index == self.count - 1
            interval = time if is_last else 1 / self.steps
            components = self.translation, self.rotation, self.torsion
            first, second, third = (each.factors(time, interval) for each in components)
            if is_last and not self.noisy_end:
                first, second, third = (f._replace(noise=0.0) for f in (first, second, third))
            yield Step(time, self.translation.sigma(time), (first, second, third))
