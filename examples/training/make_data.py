"""Sample geometries of the start structures and label them with GFN2-xTB.

Usage: ``python make_data.py --structures structures.xyz --out data --workers 16 --minutes 9``

The work is a list of independent seeded tasks.  Each writes one file, atomically, so a run that is
interrupted or out of time resumes where it stopped; ``--minutes 0`` only merges what is there.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import math
import multiprocessing
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.pool import AsyncResult
from pathlib import Path

import numpy as np
from ase.data import atomic_masses, vdw_radii
from ase.units import fs, kB
from structures import Structure, attach, read_structures
from tblite.interface import Calculator

HARTREE = 27.211386245988  # eV, CODATA 2018
BOHR = 0.529177210903  # Å, CODATA 2018
MAX_FORCE = 25.0  # eV/Å
MAX_STRETCH = 1.6  # of the start length of a bond; beyond, the molecule counts as dissociated
MIN_CONTACT = 0.55  # of the sum of van der Waals radii, within a molecule
SPLITS = {"train": 0, "validation": 1, "test": 2, "test_molecule": 3}
UNPAIRED = {1: 1, 6: 2, 7: 3, 8: 2, 16: 2}  # electrons of the free atoms

TIME_STEP = 1.5 * fs
FRICTION = 0.02 / fs
EQUILIBRATION = 100  # steps
QUENCH = 40  # steps
TASK_SECONDS = 6.0  # short tasks, because none is started once the time is up
MAX_FRAMES = 20
DISTORTIONS = 6
CONTACTS = 30
CONTACT_TASKS = 90  # per round

# Temperatures in K, and the number of rounds in which each group is sampled again.
MD_PLAN = {
    "md17": ((300, 500, 700), 4),
    "peptide": ((300, 500, 700), 2),
    "chain": ((300, 500, 700), 2),
    "fragment": ((300, 500, 700), 1),
    "water": ((280, 330, 450, 600), 2),
    "hydrated": ((300, 450, 600), 1),
    "complex": ((300, 500), 1),
}
ROUNDS = max(rounds for _, rounds in MD_PLAN.values())
BROAD_ROUNDS = 2  # rounds with distortions and contacts

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SHARD_BYTES = 14_000_000  # before compression
LOST_AFTER = 150.0  # seconds; no task takes that long, so its worker must have died
GRACE = 30.0  # seconds for the running tasks once the time is up


@dataclass(frozen=True)
class Task:
    """One independent piece of work; its name determines its seed and its split.

    Attributes
    ----------
    kind
        A key of `SAMPLERS`.
    pieces
        The structure to sample, or the molecules to bring into contact.
    replica
        Distinguishes tasks of the same kind on the same structure.
    temperature
        In K, for molecular dynamics.
    """

    kind: str
    pieces: tuple[Structure, ...]
    replica: int
    temperature: int = 0

    @property
    def name(self) -> str:
        """Unique name, also the stem of the task's file."""
        molecules = "~".join(f"{s.name}.{s.conformer}" for s in self.pieces)
        return f"{self.kind}_{molecules}_{self.temperature}K_{self.replica}"

    @property
    def seed(self) -> int:
        """Seed of everything random in the task."""
        return zlib.crc32(self.name.encode())

    @property
    def split(self) -> int:
        """Index in `SPLITS`; whole tasks are held out, so no two splits share a trajectory."""
        if any(s.split == "test_molecule" for s in self.pieces):
            return SPLITS["test_molecule"]
        draw = np.random.default_rng([self.seed, 1]).random()
        return SPLITS["validation" if draw < 0.05 else "test" if draw < 0.1 else "train"]


class Gfn2:
    """GFN2-xTB energies (eV) and forces (eV/Å) of one molecule.

    Parameters
    ----------
    numbers, charge
        The molecule.
    unpaired
        Number of unpaired electrons.
    accuracy
        Convergence thresholds relative to the tblite defaults.
    restart
        Whether to start from the previous density.  Labels do not, so that they depend on nothing
        but the geometry.
    """

    def __init__(
        self,
        numbers: np.ndarray,
        charge: int,
        unpaired: int = 0,
        accuracy: float = 1.0,
        restart: bool = False,
    ) -> None:
        placeholder = 3.0 * np.arange(3 * len(numbers)).reshape(-1, 3)
        self._calculator = Calculator("GFN2-xTB", numbers, placeholder, charge, unpaired)
        self._calculator.set("verbosity", 0)
        self._calculator.set("accuracy", accuracy)
        self._restart = restart
        self._previous = None

    def __call__(self, positions: np.ndarray) -> tuple[float, np.ndarray]:
        """Evaluate one geometry in Å; raise RuntimeError if it does not converge."""
        self._calculator.update(positions / BOHR)
        result = self._calculator.singlepoint(self._previous)
        self._previous = result if self._restart else None
        return float(result["energy"]) * HARTREE, -result["gradient"] * (HARTREE / BOHR)


def sample_md(task: Task, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield snapshots of a Langevin trajectory until a bond breaks."""
    (start,) = task.pieces
    n = len(start.numbers)
    every = int(np.interp(n, (10, 40), (25, 12)))
    step_seconds = 0.7e-3 * (n / 9) ** 2.1  # an estimate, so that the task does not depend on load
    frames = int(np.clip(TASK_SECONDS / (every * step_seconds), 8, MAX_FRAMES))
    # Loose convergence is enough to propagate the atoms, and halves the time.
    model = Gfn2(start.numbers, start.charge, accuracy=50.0, restart=True)

    def forces(x: np.ndarray) -> np.ndarray:
        return model(x)[1] + wall_force(x, start.wall)

    limits = MAX_STRETCH * bond_lengths(start.positions, start)
    # Heavy hydrogens leave the sampled distribution alone and allow the longer time step.
    masses = np.maximum(atomic_masses[start.numbers], 4.0)
    trajectory = langevin(quench(start.positions, forces), masses, forces, task.temperature, rng)
    for step in range(1 - EQUILIBRATION, frames * every + 1):
        x = next(trajectory)
        if np.any(bond_lengths(x, start) > limits):
            return
        if step > 0 and step % every == 0:
            yield x


def sample_torsions(task: Task, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield full turns about each rotatable bond, jittered, without the overlapping ones."""
    (start,) = task.pieces
    distant = ~within_three_bonds(start)
    reach = MIN_CONTACT * (vdw_radii[start.numbers][:, None] + vdw_radii[start.numbers])
    for _, j, k, _ in start.torsions:
        group = moving_side(start, j, k)
        offset = rng.uniform(0, 30)
        for degrees in range(0, 360, 30):
            x = rotated(start.positions, group, j, k, math.radians(degrees + offset))
            x = jittered(x, rng.uniform(0.02, 0.06), rng)
            gaps = np.linalg.norm(x[:, None] - x, axis=-1)
            if np.all(gaps[distant] > reach[distant]):
                yield x


def sample_distortions(task: Task, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield jittered copies, alternately scaled as a whole or with one bond stretched or pressed.

    A stretched bond carries along all that hangs on it.
    """
    (start,) = task.pieces
    groups = {(j, k): moving_side(start, j, k) for j, k in start.bonds}
    open_bonds = [bond for bond, group in groups.items() if group.size]
    for frame in range(DISTORTIONS):
        x = start.positions.copy()
        if open_bonds and frame % 2:
            j, k = open_bonds[rng.integers(len(open_bonds))]
            x[groups[j, k]] += (rng.uniform(0.85, 1.35) - 1) * (x[k] - x[j])
        else:
            x *= rng.uniform(0.92, 1.1)
        yield jittered(x, rng.uniform(0.02, 0.08), rng)


def sample_contacts(task: Task, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield random arrangements of the molecules, from well inside contact to far apart."""
    for _ in range(CONTACTS):
        pieces = [replace(s, positions=jittered(s.positions, 0.03, rng)) for s in task.pieces]
        cluster = pieces[0]
        for piece in pieces[1:]:
            near = rng.random() < 0.7
            cluster = attach(
                rng, cluster, piece, rng.uniform(0.6, 1.0) if near else 1 + rng.random()
            )
        yield cluster.positions


SAMPLERS: dict[str, Callable[[Task, np.random.Generator], Iterator[np.ndarray]]] = {
    "md": sample_md,
    "torsion": sample_torsions,
    "distort": sample_distortions,
    "contact": sample_contacts,
}


def langevin(
    x: np.ndarray,
    masses: np.ndarray,
    forces: Callable[[np.ndarray], np.ndarray],
    temperature: float,
    rng: np.random.Generator,
) -> Iterator[np.ndarray]:
    """Yield the positions after each BAOAB step, without end."""
    mass = masses[:, None]
    thermal = np.sqrt(kB * temperature / mass)
    keep = math.exp(-FRICTION * TIME_STEP)
    kick = math.sqrt(1 - keep**2) * thermal
    velocity = thermal * rng.normal(size=x.shape)
    force = forces(x)
    while True:
        velocity = velocity + 0.5 * TIME_STEP * force / mass
        x = x + 0.5 * TIME_STEP * velocity
        velocity = keep * velocity + kick * rng.normal(size=x.shape)
        x = x + 0.5 * TIME_STEP * velocity
        force = forces(x)
        velocity = velocity + 0.5 * TIME_STEP * force / mass
        yield x


def quench(x: np.ndarray, forces: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Relieve close contacts by a few capped steepest-descent steps."""
    for _ in range(QUENCH):
        move = 0.01 * forces(x)
        length = np.linalg.norm(move, axis=1, keepdims=True)
        x = x + move * np.minimum(1, 0.05 / np.maximum(length, 1e-9))
    return x


def wall_force(x: np.ndarray, radius: float) -> np.ndarray:
    """Pull atoms outside the sphere about the centroid back, at 1 eV/Å²; no radius, no wall."""
    if not radius:
        return np.zeros_like(x)
    offset = x - x.mean(0)
    distance = np.linalg.norm(offset, axis=1, keepdims=True)
    return -np.maximum(distance - radius, 0) * offset / np.maximum(distance, 1e-9)


def bond_lengths(x: np.ndarray, structure: Structure) -> np.ndarray:
    """Lengths of the bonds that ``structure`` lists, at the positions ``x``."""
    i, j = np.array(structure.bonds).T
    return np.linalg.norm(x[i] - x[j], axis=1)


def within_three_bonds(structure: Structure) -> np.ndarray:
    """Mask of the atom pairs joined by at most three bonds."""
    adjacent = np.eye(len(structure.numbers), dtype=int)
    i, j = np.array(structure.bonds).T
    adjacent[i, j] = adjacent[j, i] = 1
    return np.linalg.matrix_power(adjacent, 3) > 0


def moving_side(structure: Structure, j: int, k: int) -> np.ndarray:
    """Atoms on the side of ``k`` when the bond j-k is cut; empty for a bond in a ring."""
    side, edge = {k}, [k]
    while edge:
        atom = edge.pop()
        for a, b in structure.bonds:
            other = b if a == atom else a if b == atom else atom
            if other not in side and (atom, other) != (k, j):
                side.add(other)
                edge.append(other)
    return np.array([] if j in side else sorted(side), dtype=int)


def rotated(x: np.ndarray, group: np.ndarray, j: int, k: int, angle: float) -> np.ndarray:
    """Rotate the atoms of ``group`` about the axis j-k, by Rodrigues' formula."""
    axis = (x[k] - x[j]) / np.linalg.norm(x[k] - x[j])
    arm = x[group] - x[k]
    turned = (
        arm * math.cos(angle)
        + np.cross(axis, arm) * math.sin(angle)
        + np.outer(arm @ axis, axis) * (1 - math.cos(angle))
    )
    result = x.copy()
    result[group] = x[k] + turned
    return result


def jittered(x: np.ndarray, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Add Gaussian noise to every coordinate."""
    return x + rng.normal(scale=sigma, size=x.shape)


def plan(structures: list[Structure]) -> list[Task]:
    """List all tasks, such that any leading part of the list is a balanced data set.

    The first round covers every molecule and every kind of task; later rounds repeat some of it.
    """
    tasks: dict[str, Task] = {}
    for round_ in range(ROUNDS):
        batch = [*round_of_md(structures, round_)]
        if round_ < BROAD_ROUNDS:
            batch += [Task("distort", (s,), round_) for s in structures]
            batch += round_of_contacts(structures, round_)
        if round_ == 0:
            batch += [Task("torsion", (s,), 0) for s in structures if s.torsions]
        tasks |= {task.name: task for task in sorted(batch, key=lambda task: task.seed)}
    return list(tasks.values())


def round_of_md(structures: list[Structure], round_: int) -> Iterator[Task]:
    """Yield the trajectories of one round; the smallest molecules also run at 1000 K."""
    for s in structures:
        temperatures, rounds = MD_PLAN[s.group]
        if s.group in ("md17", "fragment") and len(s.numbers) <= 12:
            temperatures += (1000,)
        if round_ < rounds:
            yield from (Task("md", (s,), round_, t) for t in temperatures)


def round_of_contacts(structures: list[Structure], round_: int) -> Iterator[Task]:
    """Yield random pairs and trios of small molecules, a third of them with water."""
    rng = np.random.default_rng(round_)
    small = [s for s in structures if s.group == "fragment" and len(s.numbers) <= 14]
    small = [s for s in small if s.split == "train"]
    water = next(s for s in structures if s.name == "water")
    for index in range(CONTACT_TASKS):
        chosen = rng.choice(len(small), size=3 if index % 4 == 0 else 2)
        pieces = tuple(small[i] for i in chosen)
        yield Task("contact", (water, *pieces[1:]) if index % 3 == 0 else pieces, round_)


def run_task(task: Task, folder: Path) -> tuple[int, float]:
    """Sample and label one task and write its file.

    Returns
    -------
    int, float
        The number of configurations kept, and the seconds spent.
    """
    begin = time.perf_counter()
    frames = []
    with contextlib.suppress(RuntimeError):  # a trajectory ends where its SCF does not converge
        for x in SAMPLERS[task.kind](task, np.random.default_rng(task.seed)):
            frames.append(x - x.mean(0))
    numbers = np.concatenate([s.numbers for s in task.pieces])
    charge = sum(s.charge for s in task.pieces)
    labels = label(numbers, charge, frames)
    save(
        folder / f"{task.name}.npz",
        numbers=numbers.astype(np.int8),
        charge=np.int8(charge),
        split=np.int8(task.split),
        discarded=len(frames) - len(labels["energy"]),
        seconds=time.perf_counter() - begin,
        **labels,
    )
    return len(labels["energy"]), time.perf_counter() - begin


def label(numbers: np.ndarray, charge: int, frames: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Label the frames, dropping those that do not converge or have excessive forces."""
    model = Gfn2(numbers, charge)
    kept = []
    for x in frames:
        # The stored coordinates are the labelled ones, to the last bit.
        x = x.astype(np.float32)
        with contextlib.suppress(RuntimeError):
            energy, forces = model(x.astype(float))
            if np.linalg.norm(forces, axis=1).max() <= MAX_FORCE:
                kept.append((x, energy, forces))
    return {
        "positions": np.array([k[0] for k in kept], np.float32).reshape(-1, len(numbers), 3),
        "energy": np.array([k[1] for k in kept], float),
        "forces": np.array([k[2] for k in kept], np.float32).reshape(-1, len(numbers), 3),
    }


def save(path: Path, **arrays: np.ndarray) -> None:
    """Write an npz file that is either complete or absent."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
    partial.replace(path)


class Progress:
    """One status line on the terminal."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._done = self._configs = 0
        self._seconds = 0.0
        self._begin = time.monotonic()

    def record(self, configs: int, seconds: float) -> None:
        """Count a finished task and refresh the line."""
        self._done += 1
        self._configs += configs
        self._seconds += seconds
        left = (time.monotonic() - self._begin) * (self._tasks / self._done - 1)
        cost = 1e3 * self._seconds / max(self._configs, 1)
        print(
            f"\r{self._done}/{self._tasks} tasks  {self._configs} configurations  "
            f"{cost:.0f} ms each  {left:.0f} s left for all ",
            end="",
            flush=True,
        )


def run_tasks(tasks: list[Task], folder: Path, workers: int, deadline: float) -> None:
    """Work through the tasks in order; start none after the deadline."""
    queue = iter(tasks)
    running: dict[AsyncResult, tuple[Task, float]] = {}
    progress = Progress(len(tasks))
    # The workers read this when they load NumPy and tblite: each has one core.
    os.environ |= dict.fromkeys(THREAD_VARIABLES, "1")
    # Spawned workers share no state; replacing them now and then bounds leaks in compiled code.
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, ignore_interrupts, maxtasksperchild=100) as pool:
        while (now := time.monotonic()) < deadline + GRACE:
            if now < deadline:
                for task in itertools.islice(queue, workers + 2 - len(running)):
                    running[pool.apply_async(run_task, (task, folder))] = task, now
            if not running:
                break
            time.sleep(0.02)
            for result in [r for r in running if r.ready()]:
                task, _ = running.pop(result)
                collect(task, result, progress)
            for result in [r for r, (_, start) in running.items() if now - start > LOST_AFTER]:
                logging.warning("lost %s", running.pop(result)[0].name)
    print()


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def collect(task: Task, result: AsyncResult, progress: Progress) -> None:
    """Count a finished task, or log why it failed."""
    try:
        progress.record(*result.get())
    except Exception:
        logging.exception("failed %s", task.name)


def merge(folder: Path, out: Path) -> None:
    """Gather the finished tasks into shards of flat arrays."""
    paths = sorted(folder.glob("*.npz"))
    parts = [flattened(path, index) for index, path in enumerate(paths)]
    sizes = np.cumsum([sum(a.nbytes for a in part.values()) for part in parts])
    shards = math.ceil(sizes[-1] / SHARD_BYTES)
    owner = np.minimum(sizes * shards // sizes[-1], shards - 1)
    common = {
        "task_names": np.array([path.stem for path in paths]),
        "split_names": np.array(list(SPLITS)),
        **free_atoms(),
    }
    for shard in range(shards):
        chosen = [part for part, o in zip(parts, owner, strict=True) if o == shard]
        arrays = {key: np.concatenate([part[key] for part in chosen]) for key in chosen[0]}
        save(out / f"data_{shard}.npz", **arrays, **common)
        print(f"data_{shard}.npz: {len(arrays['energy'])} configurations")


def flattened(path: Path, index: int) -> dict[str, np.ndarray]:
    """Read one task's file as flat arrays, one entry per configuration or per atom."""
    with np.load(path) as task:
        count, n = len(task["energy"]), len(task["numbers"])
        return {
            "n_atoms": np.full(count, n, np.int16),
            "numbers": np.tile(task["numbers"], count),
            "positions": task["positions"].reshape(-1, 3),
            "energy": task["energy"],
            "forces": task["forces"].reshape(-1, 3),
            "charge": np.full(count, task["charge"], np.int8),
            "split": np.full(count, task["split"], np.int8),
            "task": np.full(count, index, np.int32),
        }


def free_atoms() -> dict[str, np.ndarray]:
    """Compute the energies of the free atoms, for information."""
    energies = [
        Gfn2(np.array([z]), 0, unpaired)(np.zeros((1, 3)))[0] for z, unpaired in UNPAIRED.items()
    ]
    return {"atom_numbers": np.array(list(UNPAIRED)), "atom_energies": np.array(energies)}


def main() -> None:
    """Run the tasks that are not done yet, then merge."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structures", type=Path, default=Path("structures.xyz"))
    parser.add_argument("--out", type=Path, default=Path("data"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=9.0, help="time for the tasks")
    args = parser.parse_args()
    folder = args.out / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    tasks = plan(read_structures(args.structures))
    open_tasks = [task for task in tasks if not (folder / f"{task.name}.npz").exists()]
    print(f"{len(open_tasks)} of {len(tasks)} tasks to do")
    run_tasks(open_tasks, folder, args.workers, begin + 60 * args.minutes)
    merge(folder, args.out)


if __name__ == "__main__":
    main()
