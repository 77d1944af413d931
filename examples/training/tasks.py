"""The plan of the data set: independent tasks, each with its own seed and split."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from geometry import Structure

SPLITS = {"train": 0, "validation": 1, "test": 2, "test_molecule": 3}

# Temperatures in K and number of rounds of molecular dynamics, by group.
MD_PLAN: dict[str, tuple[tuple[int, ...], int]] = {
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
CONTACT_TASKS = 90  # per round


@dataclass(frozen=True)
class Task:
    """One independent piece of work; its name determines its seed and its split.

    Attributes
    ----------
    kind : str
        Kind of sampling, a key of `sampling.SAMPLERS`.
    pieces : tuple of Structure
        Structure to sample, or molecules to bring into contact.
    replica : int
        Index among tasks of the same kind on the same structure.
    temperature : int
        Temperature of molecular dynamics in K.
    """

    kind: str
    pieces: tuple[Structure, ...]
    replica: int
    temperature: int = 0

    @property
    def name(self) -> str:
        """Unique name, and the stem of the task's file."""
        molecules = "~".join(f"{s.name}.{s.conformer}" for s in self.pieces)
        return f"{self.kind}_{molecules}_{self.temperature}K_{self.replica}"

    @property
    def seed(self) -> int:
        """Seed of all random numbers of the task."""
        return zlib.crc32(self.name.encode())

    @property
    def split(self) -> int:
        """Index in `SPLITS`. Whole tasks are held out, so splits do not share trajectories."""
        if any(s.split == "test_molecule" for s in self.pieces):
            return SPLITS["test_molecule"]
        draw = np.random.default_rng([self.seed, 1]).random()
        return SPLITS["validation" if draw < 0.05 else "test" if draw < 0.1 else "train"]


def plan(structures: list[Structure]) -> list[Task]:
    """List all tasks in an order that makes every leading part a balanced data set.

    The first round covers every molecule and every kind of task. Later rounds repeat some of them.
    """
    tasks: dict[str, Task] = {}
    for round_ in range(ROUNDS):
        batch = [*_round_of_md(structures, round_)]
        if round_ < BROAD_ROUNDS:
            batch += [Task("distort", (s,), round_) for s in structures]
            batch += _round_of_contacts(structures, round_)
        if round_ == 0:
            batch += [Task("torsion", (s,), 0) for s in structures if s.torsions]
        tasks |= {task.name: task for task in sorted(batch, key=lambda task: task.seed)}
    return list(tasks.values())


def first_of_each_kind(tasks: list[Task], limit: int) -> list[Task]:
    """Return the first ``limit`` tasks of each kind, in order."""
    kinds = [task.kind for task in tasks]
    return [task for i, task in enumerate(tasks) if kinds[:i].count(task.kind) < limit]


def _round_of_md(structures: list[Structure], round_: int) -> Iterator[Task]:
    """Yield the trajectories of one round, for the smallest molecules also at 1000 K."""
    for s in structures:
        temperatures, rounds = MD_PLAN[s.group]
        if s.group in ("md17", "fragment") and len(s.numbers) <= 12:
            temperatures += (1000,)
        if round_ < rounds:
            yield from (Task("md", (s,), round_, t) for t in temperatures)


def _round_of_contacts(structures: list[Structure], round_: int) -> Iterator[Task]:
    """Yield random pairs and triples of small molecules, a third of them with water."""
    rng = np.random.default_rng(round_)
    small = [s for s in structures if s.group == "fragment" and len(s.numbers) <= 14]
    small = [s for s in small if s.split == "train"]
    water = next(s for s in structures if s.name == "water")
    for index in range(CONTACT_TASKS):
        chosen = rng.choice(len(small), size=3 if index % 4 == 0 else 2)
        pieces = tuple(small[i] for i in chosen)
        yield Task("contact", (water, *pieces[1:]) if index % 3 == 0 else pieces, round_)
