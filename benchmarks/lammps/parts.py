"""Steps of one part of a divided box, alone on a GPU, without LAMMPS and MPI.

Usage: ``python -m benchmarks.lammps.parts --ranks 2 4``. A rank with a GPU of its own spends this
time in the model. Atoms move a little between steps, as in a simulation between two exchanges of
ghosts. Rows go to ``lammps.csv`` as ``part-of-4``: ``atoms`` counts those of the whole box, and
``edges`` the ghosts of the part. For the checked cases, all parts are computed, and their sum is
compared with the truth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engine.gate import GateError, Truth
from benchmarks.engine.implementations import OUR_TOLERANCE, Outcome
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import RESULTS, Results, make_row
from benchmarks.lammps.cases import Case, cases
from benchmarks.lammps.projection import Domain
from benchmarks.lammps.runner import BENCH, select, timing_of
from benchmarks.systems.models import MODELS
from mlff_triton import Engine
from mlff_triton._common.devices import find_device
from mlff_triton._common.timing import Timing, environment, peak_mib, reset_peak
from mlff_triton.calculators.lammps.coupling import SKIN
from mlff_triton.errors import MlffTritonError
from mlff_triton.model.tensornet import TensorNet

DISPLACEMENT = 1e-3  # Å per step


@dataclass(frozen=True)
class Part:
    """Own atoms of a domain, and then the ghosts that LAMMPS would send.

    Attributes
    ----------
    indices : int64 [N]
        Atom of the box that each of them is or is a copy of.
    positions : float64 [N, 3]
        Å.
    n_own : int
        Number of own atoms.
    """

    indices: NDArray[np.int64]
    positions: NDArray[np.float64]
    n_own: int


def divide(
    positions: NDArray[np.float64],
    sides: NDArray[np.float64],
    grid: tuple[int, int, int],
    place: tuple[int, int, int],
    reach: float,
) -> Part:
    """Return the part of one domain of a periodic box.

    Parameters
    ----------
    positions : float64 [N, 3]
        Positions within the box, from 0 to its sides.
    sides : float64 [3]
        Sides of the box.
    grid, place : three ints
        Number of domains in each direction, and the place of this one among them.
    reach : float
        Distance from the faces of the domain within which images are ghosts.
    """
    low = sides * place / grid
    high = sides * (np.array(place) + 1) / grid
    owned = ((positions >= low) & (positions < high)).all(axis=1)
    own = np.flatnonzero(owned)
    indices, found = [own], [positions[own]]
    images = [range(-n, n + 1) for n in np.ceil(reach / sides).astype(int)]
    for shift in product(*images):
        moved = positions + sides * shift
        near = ((moved >= low - reach) & (moved < high + reach)).all(axis=1)
        if not any(shift):
            near &= ~owned
        indices.append(np.flatnonzero(near))
        found.append(moved[near])
    return Part(np.concatenate(indices), np.concatenate(found), len(own))


def box_of(case: Case) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return atomic numbers and positions of a case, and the sides of its box."""
    system = case.system()
    unit = case.sides(system)
    shifts = np.array(list(product(*map(range, case.copies))))
    inside = np.mod(system.positions, unit)
    positions = (inside[None] + (shifts * unit)[:, None]).reshape(-1, 3)
    return np.tile(system.numbers, len(shifts)), positions, unit * case.copies


def run_case(lab: Lab, case: Case, n_ranks: int, chunks: int, steps: int) -> None:
    """Measure a part of a case, after a check of all parts if they are few."""
    model = MODELS[case.model]()
    numbers, positions, sides = box_of(case)
    grid = Domain(len(numbers), n_ranks).grid
    engine = Engine(model, lab.device)
    reach = engine.part().reach + SKIN
    impl, key = f"part-of-{n_ranks}", (case.model, BENCH, n_ranks)
    if case.kind == "check":
        parts = [divide(positions, sides, grid, place, reach) for place in np.ndindex(grid)]
        try:
            lab.errors[key] = check(lab, case, model, engine, numbers, parts)
        except GateError as failure:
            lab.complain(f"{case.name}, {impl}", failure)
            return
    part = divide(positions, sides, grid, (0, 0, 0), reach)
    size = len(numbers), len(part.indices) - part.n_own
    try:
        timing = time_part(engine, numbers, part, chunks, steps)
    except MlffTritonError as error:
        lab.complain(f"{case.name}, {impl}", error)
        return
    lab.report(make_row(BENCH, case.name, impl, size, lab.where, timing, lab.errors.get(key)))


def check(
    lab: Lab,
    case: Case,
    model: TensorNet,
    engine: Engine,
    numbers: NDArray[np.int64],
    parts: Sequence[Part],
) -> float:
    """Compare the sum of all parts with the truth, and return the error of a force."""
    energy, forces = 0.0, np.zeros((len(numbers), 3))
    step = engine.part()
    for part in parts:
        step.set_atoms(numbers[part.indices], part.n_own, len(numbers))
        found = step.step(part.positions)
        energy += found.energy
        np.add.at(forces, part.indices, found.forces)
    outcome = Outcome(torch.tensor([energy], dtype=torch.float64), torch.from_numpy(forces))
    return Truth.of(model, case.system(), lab.device).check(outcome, OUR_TOLERANCE)


def time_part(
    engine: Engine, numbers: NDArray[np.int64], part: Part, chunks: int, steps: int
) -> Timing:
    """Time a part, from positions to forces on the host."""
    step = engine.part()
    reset_peak(engine.device)
    step.set_atoms(numbers[part.indices], part.n_own, len(numbers))
    direction = np.random.default_rng(0).normal(0, DISPLACEMENT, part.positions.shape)
    places = [part.positions + k * direction for k in range(4)]
    for points in places:
        step.step(points)
    times = []
    for _ in range(chunks):
        began = time.perf_counter()
        for k in range(steps):
            step.step(places[k % len(places)])
        times.append(1e3 * (time.perf_counter() - began) / steps)
    return timing_of(np.array(times), peak_mib(engine.device))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure parts of the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--cases", nargs="+", default=[], help="kinds or names; all by default")
    parser.add_argument("--chunks", type=int, default=10, help="chunks of steps to time")
    parser.add_argument("--steps", type=int, default=10, help="steps per chunk")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the CSV file")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    lab = Lab(device, environment(device), Results(options.out))
    for n_ranks in options.ranks:
        for case in select(options.cases, cases(n_ranks)):
            run_case(lab, case, n_ranks, options.chunks, options.steps)


if __name__ == "__main__":
    main()
