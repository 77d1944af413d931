"""Systems moved by several processes as if by one.

Systems do not depend on each other, and random numbers depend only on the number of their system,
so the division changes no bit of a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from ase import Atoms

from mlff_triton.dynamics.device_process import DeviceProcess, Failure
from mlff_triton.engine.motion import Conditions, Observation, State, Suspect

OF_ATOMS = ("positions", "velocities", "heat")  # fields of `State`; others are of systems
OF_SYSTEMS = ("temperature", "stream", "lost", "stiffness")  # fields of `Conditions`


class DividedDynamics:
    """Molecular dynamics of several systems; see `mlff_triton.engine.motion.Dynamics`.

    Parameters
    ----------
    processes : sequence of DeviceProcess
        The processes, at most one per system.
    systems : sequence of Atoms
        The systems. Neighbors are in the same process, and all processes have about equally many
        atoms.
    threads : int, optional
        Number of threads of PyTorch on the host, in each process.
    """

    def __init__(
        self, processes: Sequence[DeviceProcess], systems: Sequence[Atoms], threads: int | None
    ) -> None:
        self._processes = processes
        counts = [len(atoms) for atoms in systems]
        self._systems = shares(counts, len(processes))
        ends = np.cumsum([0, *counts])
        self._atoms = [slice(int(ends[p.start]), int(ends[p.stop])) for p in self._systems]
        self._failure: Failure | None = None
        self._offset = 0  # first atom of the process that has failed
        self._step = 0
        for process, part in zip(processes, self._systems, strict=True):
            bare = [atoms.copy() for atoms in systems[part]]  # without the calculator
            process.ask("prepare", bare, threads)
        self._depth: int = min(self._answers())

    @property
    def step(self) -> int:
        """Number of steps done; after an error, by the process that has failed first."""
        return self._step if self._failure is None else self._failure.step

    @property
    def depth(self) -> int:
        """Number of blocks that may be queued."""
        return self._depth

    def begin(self, state: State, conditions: Conditions, *, is_continued: bool) -> Observation:
        """Compute forces, and prepare the next step."""
        for process, systems, atoms in zip(
            self._processes, self._systems, self._atoms, strict=True
        ):
            own = {name: getattr(conditions, name) for name in OF_SYSTEMS}
            own = {name: None if x is None else x[systems] for name, x in own.items()}
            part = _part(state, systems, atoms)
            process.ask("begin", part, conditions._replace(**own), is_continued)
        return self._merged()

    def queue(self, stop: int, *, is_observed: bool) -> None:
        """Queue all steps up to ``stop``."""
        for process in self._processes:
            process.ask("queue", stop, is_observed)

    def collect(self) -> Observation | None:
        """Wait for the oldest block, and return what was observed at its end, if anything.

        Raises
        ------
        MlffTritonError
            The first error of a process, by its step.
        """
        for process in self._processes:
            process.ask("collect")
        answers = self._answers()
        return None if answers[0] is None else self._joined(answers)

    def observe(self) -> Observation:
        """Return the observation at the end of the last block, when no block is queued."""
        for process in self._processes:
            process.ask("observe")
        return self._merged()

    def suspect(self) -> Suspect | None:
        """Return the atom to blame for an error; None if no forces are known."""
        found = None if self._failure is None else self._failure.suspect
        return found and found._replace(atom=found.atom + self._offset)

    def _merged(self) -> Observation:
        return self._joined(self._answers())

    def _joined(self, parts: Sequence[Observation]) -> Observation:
        """Return the observations of all processes as one."""
        self._step = parts[0].state.step
        states = [part.state for part in parts]
        state = State(self._step, *(_joined(states, field.name) for field in fields(State)[1:]))
        rest = (_joined(parts, field.name) for field in fields(Observation)[1:])
        return Observation(state, *rest)

    def _answers(self) -> list[Any]:
        """Wait for all processes, and raise the first error by its step."""
        answers = [process.answer() for process in self._processes]
        failed = [k for k, answer in enumerate(answers) if isinstance(answer, Failure)]
        if not failed:
            return answers
        first = min(failed, key=lambda k: answers[k].step)
        self._failure, self._offset = answers[first], self._atoms[first].start
        raise answers[first].error from RuntimeError(answers[first].trace)


def shares(counts: Sequence[int], n_shares: int) -> list[slice]:
    """Divide systems into consecutive non-empty parts with about equally many atoms.

    Parameters
    ----------
    counts : sequence of int
        Number of atoms in each system.
    n_shares : int
        Number of parts, at most the number of systems.

    Examples
    --------
    >>> shares([5, 5, 5, 30], 2)
    [slice(0, 3, None), slice(3, 4, None)]
    """
    ends = np.cumsum(counts)
    wanted = ends[-1] * np.arange(1, n_shares) / n_shares
    bounds = [0]
    for k, goal in enumerate(wanted, 1):
        nearest = int(np.abs(ends - goal).argmin()) + 1
        bounds.append(min(max(nearest, bounds[-1] + 1), len(counts) - n_shares + k))
    return [slice(*pair) for pair in pairwise([*bounds, len(counts)])]


def _part(state: State, systems: slice, atoms: slice) -> State:
    names = [field.name for field in fields(State)[1:]]
    own = {name: getattr(state, name)[atoms if name in OF_ATOMS else systems] for name in names}
    return replace(state, **own)


def _joined(parts: Sequence[Any], name: str) -> Any:
    """Join a field of all parts; None if it is unknown."""
    values = [getattr(part, name) for part in parts]
    return None if values[0] is None else np.concatenate(values)
