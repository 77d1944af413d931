"""Check that energies change as forces imply; gradients or other units cause deviations."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from mlff_triton._common.text import printable
from mlff_triton.errors import InputError
from mlff_triton.training.close_pairs import ClosePairs, close_pairs
from mlff_triton.training.frames import Array, Frames
from mlff_triton.training.labels import LENGTH_UNITS, Labels
from mlff_triton.units import ENERGY_UNITS

LEAST, LEAST_OF_PART = 15, 30
"""Number of pairs needed to judge all structures, and those of one file or group."""
MIN_CORRELATION = 0.95  # of energies with forces, by which evidence is clear
MIN_OPPOSITION = 0.8
"""The same with opposite signs: noise and anharmonic motion weaken correlations, but turn none."""
NEAR = 0.25  # relative deviation from the slope of pairs that agree with it
MIN_AGREEMENT = 0.6  # of pairs, by which evidence is clear
RIGHT = 0.65, 1.5  # slopes of labels that agree: 1, with a margin for anharmonic motion
UNIT_TOLERANCE = 0.16  # relative deviation of a slope from the ratio of units that explains it
PARTNERS = {"Bohr": "Hartree", "nm": "kJ/mol"}
"""Units of energy that are used with units of length other than Å."""


@dataclass(frozen=True)
class Slope:
    """The ratio of changes of energies to those implied by forces.

    Attributes
    ----------
    value : float
        The slope: 1 for labels that agree, and -1 for gradients instead of forces.
    is_clear : bool
        True if the pairs determine it.
    """

    value: float
    is_clear: bool


def check_consistent(frames: Frames, labels: Labels, *, can_change: bool = True) -> None:
    """Raise `InputError` if energies do not change between close structures as forces imply.

    Nothing is raised if there are too few close structures, or if these disagree with one another.

    Parameters
    ----------
    frames : Frames
        All structures.
    labels : Labels
        Names and units by which they were read.
    can_change : bool
        If True, options change these.

    Raises
    ------
    InputError
        If energies and forces clearly contradict each other: in all structures, in one file, or in
        one group. The line names the options that mend it.
    """
    file = _numbered([name.rpartition(", frame ")[0] for name in frames.name])
    group = _numbered(frames.group.tolist())
    pairs = close_pairs(frames, file * (group.max() + 1) + group)
    for some in _parts(pairs, file, group):
        slope = fit_slope(some)
        low, high = RIGHT
        if slope.is_clear and not low < slope.value < high:
            raise InputError(_message(some, slope.value, frames, labels if can_change else None))


def fit_slope(pairs: ClosePairs) -> Slope:
    """Fit the changes of energies by a multiple of those implied by forces.

    Both are divided by the norms of force and displacement, or by their median if that is larger,
    so that no pair dominates and pairs whose energies hardly differ count for less. The sum of
    absolute residuals is minimized, by the weighted median of the ratios.
    """
    scale = np.maximum(pairs.scale, np.median(pairs.scale))
    x, y = pairs.work / scale, pairs.change / scale
    x, y = x[x != 0], y[x != 0]
    if not len(x):
        return Slope(1.0, is_clear=False)
    ratios, weights = y / x, np.abs(x)
    order = np.argsort(ratios)
    heights = np.cumsum(weights[order])
    value = float(ratios[order][np.searchsorted(heights, heights[-1] / 2)])
    agree = weights[np.abs(ratios - value) <= NEAR * abs(value)].sum() / weights.sum()
    norm = float(np.sqrt((x @ x) * (y @ y)))
    correlation = abs(float(x @ y)) / norm if norm else 0.0
    least = MIN_CORRELATION if value > 0 else MIN_OPPOSITION
    is_clear = value != 0 and agree >= MIN_AGREEMENT and correlation >= least
    return Slope(value, bool(is_clear))


def _numbered(names: list[str]) -> Array:
    """Return the number of each name, in the order in which they occur."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names])


def _parts(pairs: ClosePairs, file: Array, group: Array) -> Iterator[ClosePairs]:
    """Yield all pairs, and the pairs within each file and each group if there are enough."""
    if len(pairs) >= LEAST:
        yield pairs
    for number in (file, group):
        within = np.where(number[pairs.first] == number[pairs.second], number[pairs.first], -1)
        values, counts = np.unique(within[within >= 0], return_counts=True)
        for value in values[counts >= LEAST_OF_PART]:
            yield pairs.select(within == value)


def _message(pairs: ClosePairs, slope: float, frames: Frames, labels: Labels | None) -> str:
    """Return a line about labels that contradict each other, with the remedy."""
    first, second = (printable(frames.name[k[0]]) for k in (pairs.first, pairs.second))
    found = (
        f"energies contradict forces: from {first} to {second}, and between {len(pairs) - 1} other "
        f"pairs of close structures, they change by {slope:.3g} times what forces say"
    )
    causes, options = [], []
    given = labels or Labels()
    if slope < 0:
        causes.append("forces were gradients")
        options.append(f"--key forces={turned(frames.forces_key[pairs.first[0]])}")
    if not RIGHT[0] < abs(slope) < RIGHT[1]:
        units = _explaining(abs(slope), given)
        misfit = UNIT_TOLERANCE if units is None else units.misfit(abs(slope), given)
        whole = fit_slope(replace(pairs, change=pairs.change * frames.n_atoms[pairs.first]))
        if whole.is_clear and abs(math.log(abs(whole.value))) < misfit:
            return f"{found}, as if energies were per atom: multiply them by the number of atoms"
        if units is None:
            return f"{found}, which no units explain: correct the labels"
        causes.append(units.text(given))
        options += units.options(given)
    remedy = "convert them" if labels is None else f"use {' '.join(options)}"
    return f"{found}, as if {' and '.join(causes)}: if so, {remedy}"


def turned(key: str) -> str:
    """Return the key of the negative values, in the form of an option."""
    return shlex.quote(printable(key[1:] if key.startswith("-") else f"-{key}"))


class _Units(NamedTuple):
    """Units of energies, of energy and length in forces, and of positions."""

    energy: str
    force_energy: str
    force_length: str
    length: str

    @classmethod
    def of(cls, labels: Labels) -> _Units:
        force = labels.force_unit or f"{labels.energy_unit}/{labels.length_unit}"
        energy, _, length = force.replace("Å", "A").rpartition("/")
        return cls(labels.energy_unit, energy, length, labels.length_unit.replace("Å", "A"))

    @property
    def force(self) -> str:
        return f"{self.force_energy}/{self.force_length}"

    @property
    def ratio(self) -> float:
        """Unit of the energies implied by forces, divided by the unit of energies."""
        work = ENERGY_UNITS[self.force_energy] * LENGTH_UNITS[self.length]
        return work / LENGTH_UNITS[self.force_length] / ENERGY_UNITS[self.energy]

    def misfit(self, slope: float, labels: Labels) -> float:
        """Return the relative deviation of a slope from the one that these units imply."""
        return abs(math.log(slope * _Units.of(labels).ratio / self.ratio))

    def strangeness(self, labels: Labels) -> int:
        """Return a number that is smaller for units that are more likely, if others were given."""
        changes = sum(own != other for own, other in zip(self, _Units.of(labels), strict=True))
        return changes + (self.energy != self.force_energy)

    def text(self, labels: Labels) -> str:
        """Return the units; the unit of positions only if another one was given."""
        text = f"energies were in {self.energy} and forces in {self.force}"
        same = self.length == _Units.of(labels).length
        return text if same else f"positions were in {self.length}, {text}"

    def options(self, labels: Labels) -> list[str]:
        """Return the options that name them."""
        given = _Units.of(labels)
        options = [f"--force-unit {self.force}"]
        if self.length != given.length:
            options.insert(0, f"--length-unit {self.length}")
        if self.energy != given.energy:
            options.insert(0, f"--energy-unit {self.energy}")
        return options


def _explaining(slope: float, labels: Labels) -> _Units | None:
    """Return the most likely units that make a slope above 0, if others were given."""
    given = _Units.of(labels)
    lengths = [name for name in LENGTH_UNITS if name != "Å"]
    candidates = [
        _Units(energy, of_force, length, given.length)
        for energy, of_force, length in product(ENERGY_UNITS, ENERGY_UNITS, lengths)
        if PARTNERS.get(length, of_force) == of_force
    ]
    candidates += [given._replace(length=name) for name in lengths]
    fitting = [units for units in candidates if units.misfit(slope, labels) <= UNIT_TOLERANCE]
    return min(
        fitting,
        key=lambda units: units.strangeness(labels) + units.misfit(slope, labels),
        default=None,
    )
