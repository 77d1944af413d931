"""Simulations that must leave molecules intact and conserve energy: drugs, and a droplet of water.

Each system is simulated at constant temperature and then at constant energy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ase import Atoms
from comparison import Check, Finding, Gap, Methods, Result
from geometry import FloatArray
from simulations import read_frames, read_logs, recorded, simulate, steps_of

from mlff_triton.dynamics import Settings, Stage
from mlff_triton.dynamics.bonds import Bonds
from mlff_triton.errors import SimulationError
from mlff_triton.testing import water_box

DRUGS = (  # of the held-out molecules
    *("ibuprofen", "caffeine", "nicotine", "lidocaine", "diazepam", "fluorouracil"),
    *("metronidazole", "sulfamethoxazole", "captopril", "salbutamol"),
)
DRUG_TEMPERATURE, WATER_TEMPERATURE = 400.0, 300.0  # K
EV_PER_PS = 1e6  # meV per ns
Pairs = frozenset[tuple[int, int]]


class Lasting(NamedTuple):
    """A system, and the pairs of atoms that must stay its only bonds."""

    atoms: Atoms
    bonds: Pairs


def drugs(methods: Methods) -> Iterator[Result]:
    """Yield how long ten drugs stay intact at 400 K, and the drift of their energies."""
    missing = set(DRUGS) - {each.name for each in methods.structures}
    if missing:
        reason = f"missing in the file of conformers: {', '.join(sorted(missing))}"
        yield Gap("drugs", reason, is_missed=True)
    chosen = methods.molecules(lambda each: each.name in DRUGS)
    systems = {name: Lasting(atoms, ordered(each.bonds)) for name, atoms, each in chosen}
    if systems:
        yield from endured(methods, systems, DRUG_TEMPERATURE, methods.sizes.runs / "drugs")


def droplet(methods: Methods) -> Iterator[Result]:
    """Yield how long a droplet of water stays intact at 300 K, and the drift of its energy."""
    name = f"{methods.sizes.droplet} molecules of water"
    atoms = cut_droplet(methods.sizes.droplet)
    if methods.knows(name, atoms):
        bonds = ordered((k - k % 3, k) for k in range(len(atoms)) if k % 3)
        systems = {name: Lasting(atoms, bonds)}
        yield from endured(methods, systems, WATER_TEMPERATURE, methods.sizes.runs / "droplet")


CHECKS: tuple[Check, ...] = (drugs, droplet)


def cut_droplet(count: int) -> Atoms:
    """Return the molecules of a box of water that are closest to its center, in vacuum."""
    side = int(np.ceil((2 * count) ** (1 / 3)))  # a sphere fills half of its box
    box = water_box(side**3)
    apart = np.linalg.norm(box.positions[::3] - box.positions[::3].mean(axis=0), axis=1)
    nearest = np.argsort(apart, kind="stable")[:count]
    chosen = (3 * nearest[:, None] + [0, 1, 2]).ravel()
    return Atoms(box.numbers[chosen], box.positions[chosen])


def endured(
    methods: Methods, systems: Mapping[str, Lasting], temperature: float, folder: Path
) -> Iterator[Finding]:
    """Yield how long systems stay intact, and the drifts of their energies.

    If one of several falls apart, each is simulated by itself, so that the others are judged, too.
    """
    steps = steps_of(methods.sizes.picoseconds)
    stages = Stage("nvt", steps), Stage("nve", steps)
    settings = Settings(stages, temperature=temperature, minimize=True, **recorded(steps))
    atoms = [each.atoms for each in systems.values()]
    try:
        simulate(atoms, methods.simulated, settings, folder)
    except SimulationError as error:
        print(f"{folder}: {error}", flush=True)
        if len(systems) > 1:
            for name, each in systems.items():
                yield from endured(methods, {name: each}, temperature, folder / name)
            return
    frames = read_frames(folder, settings, len(atoms))
    logs = read_logs(folder, len(atoms), "total_eV", settings.spans[-1].label)
    whole = settings.time(settings.total_steps)
    for (name, system), found, log in zip(systems.items(), frames, logs, strict=True):
        intact = settings.time(last_intact(found, system.bonds))
        yield Finding("intact", name, "ps", intact, whole)
        yield Finding("drift", name, "meV/(atom ns)", drift(log) / len(system.atoms), 0.0)


def last_intact(frames: Iterator[Atoms], bonds: Pairs) -> int:
    """Return the step of the last frame up to which nothing but the bonds is bonded."""
    step = 0
    for frame in frames:
        if ordered(Bonds.of([frame]).pairs.tolist()) != bonds:
            break
        step = frame.info["step"]
    return step


def drift(log: FloatArray) -> float:
    """Return the slope in meV per ns of energies in eV at times in ps [rows, 2]; NaN without it."""
    if len(np.unique(log[:, 0])) < 2:
        return float("nan")
    times, energies = log.T
    return float(np.polyfit(times, energies, 1)[0]) * EV_PER_PS


def ordered(pairs: Iterable[tuple[int, ...]]) -> Pairs:
    """Return pairs of atoms with the lower index first."""
    return frozenset((min(pair), max(pair)) for pair in pairs)
