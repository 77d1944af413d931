"""Simulations step by step on the host, with any source of forces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mlff_triton._common.torch_settings import using_threads, with_own_settings
from mlff_triton.engine.motion import (
    Conditions,
    FloatArray,
    Observation,
    State,
    Suspect,
    UncertainAtomError,
    check_strain,
)
from mlff_triton.engine.totals import WIDTH, Totals
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.kernels.types.motion import Motion
from mlff_triton.neighbors.contacts import ContactSearch


class Moves(NamedTuple):
    """Operators of a step of motion; see the modules of `mlff_triton.kernels.dynamics`."""

    advance: Callable[..., None]
    choose_scale: Callable[..., None]
    press: Callable[..., None]
    descend: Callable[..., None]


class StepwiseDynamics(ABC):
    """Molecular dynamics of several systems; see `mlff_triton.engine.motion.Dynamics`.

    Parameters
    ----------
    counts : sequence of int
        Number of atoms in each system.
    pbc : bool [B, 3]
        Periodic directions of each system.
    masses : float64 [N]
        amu; infinite for atoms that do not move.
    limits : float64 [N], optional
        Length of each atom in Å: two atoms are too close below the sum of their lengths.
    moves : Moves
        Operators that move the atoms.

    Attributes
    ----------
    threads : int or None
        Number of threads of PyTorch; None for as many as it uses elsewhere.
    """

    @with_own_settings
    def __init__(
        self,
        counts: Sequence[int],
        pbc: NDArray[np.bool_],
        masses: FloatArray,
        limits: FloatArray | None,
        moves: Moves,
    ) -> None:
        self.threads: int | None = None
        n_atoms, n_systems = sum(counts), len(counts)
        positions = torch.zeros(n_atoms, 3, dtype=torch.float64)
        cell = torch.zeros(n_systems, 3, 3, dtype=torch.float64)
        self._motion = Motion.zeros(positions, cell, torch.tensor(counts))
        self._motion.inverse_mass.copy_(torch.from_numpy(1 / masses))
        self._moves, self._pbc = moves, pbc
        ends = np.cumsum([0, *counts]).tolist()
        self._parts = [slice(*pair) for pair in pairwise(ends)]
        self._contacts = [] if limits is None else [ContactSearch(limits[p]) for p in self._parts]
        # The state and the results of the last evaluation
        self._positions, self._cells = positions.numpy(), cell.numpy()
        self._clock = self._motion.clock.numpy()
        self._forces = torch.zeros_like(positions)
        self._totals = torch.zeros(n_systems, WIDTH, dtype=torch.float64)
        self._energies = self._totals.numpy()[:, 0]
        self._uncertainty: FloatArray | None = None
        self._minimized: FloatArray | None = None  # positions of the last evaluation
        self._is_evaluated = False
        self._queue: deque[tuple[int, bool]] = deque()
        self._blamed: int | None = None

    @abstractmethod
    def _compute(self, which: Sequence[int]) -> None:
        """Write forces and totals of some systems, at their pending positions."""

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self._clock[0, 0])

    @property
    def depth(self) -> int:
        """Number of blocks that may be queued: one, because nothing runs in the meantime."""
        return 1

    def begin(self, state: State, conditions: Conditions, *, is_continued: bool) -> Observation:
        """Compute forces, and prepare the next step."""
        self._set(state, conditions, is_continued=is_continued)
        with using_threads(self.threads):
            self._evaluate()
        self._start()
        return self.observe()

    @with_own_settings
    def _set(self, state: State, conditions: Conditions, *, is_continued: bool) -> None:
        motion = self._motion
        for name in ("positions", "cell"):
            for tensor in (getattr(motion, name), getattr(motion, f"done_{name}")):
                tensor.copy_(torch.from_numpy(getattr(state, name)))
        motion.done_velocities.copy_(torch.from_numpy(state.velocities))
        motion.done_heat.copy_(torch.from_numpy(state.heat))
        motion.work.copy_(torch.from_numpy(state.work))
        motion.temperature.copy_(torch.from_numpy(conditions.temperature))
        motion.stream.copy_(torch.from_numpy(conditions.stream))
        motion.lost.copy_(torch.from_numpy(conditions.lost))
        if conditions.stiffness is not None:
            motion.stiffness.copy_(torch.from_numpy(conditions.stiffness))
        motion.reset(state.step, conditions.descent, is_continued=is_continued)
        self._queue.clear()
        self._conditions = conditions
        self._minimized = None

    @with_own_settings
    def _start(self) -> None:
        """Take the part of the first step that follows the first forces."""
        if self._conditions.descent is None:
            given = self._motion, self._forces, self._totals, self._conditions.integration
            self._moves.advance(*given, finish=False)
        self._press()

    def queue(self, stop: int, *, is_observed: bool) -> None:
        """Queue all steps up to ``stop``."""
        self._queue.append((stop, is_observed))

    def collect(self) -> Observation | None:
        """Take the steps of the oldest block, and return what was observed at its end, if anything.

        Raises
        ------
        MlffTritonError
            If our calculator cannot evaluate a step, or atoms have come too close to one another.
            `step` then tells how many steps were valid.
        """
        stop, is_observed = self._queue.popleft()
        with using_threads(self.threads):
            self._advance_to(stop)
        return self.observe() if is_observed else None

    def _advance_to(self, stop: int) -> None:
        self._motion.window[0], self._motion.window[1] = self.step, stop
        while self.step < stop:
            self._evaluate()
            if not (np.isfinite(self._positions).all() and np.isfinite(self._energies).all()):
                raise InputError("positions or energies are NaN or infinite")
            self._check_certain()
            self._move()

    def _check_certain(self) -> None:
        """Raise an `UncertainAtomError` if a force is too uncertain."""
        known, most = self._uncertainty, self._conditions.most_uncertain
        if known is not None and most is not None and known.max() > most:
            found = self._positions.copy(), self._cells.copy(), known.copy()
            raise UncertainAtomError.of(self.step + 1, *found)

    def _note_uncertainty(self, part: slice, values: FloatArray | None) -> None:
        """Keep the uncertainties of some atoms in eV/Å, if the model knows them."""
        if values is not None:
            if self._uncertainty is None:
                self._uncertainty = np.full(len(self._positions), np.nan)
            self._uncertainty[part] = values

    @with_own_settings
    def _move(self) -> None:
        """Take a step. The forces were computed under the settings of the caller."""
        conditions, moves = self._conditions, self._moves
        given = self._motion, self._forces, self._totals
        if conditions.descent is not None:
            moves.descend(*given, conditions.descent)
        elif conditions.rescaling is None:
            moves.advance(*given, conditions.integration)
        else:
            moves.advance(*given, conditions.integration, start=False)
            moves.choose_scale(self._motion, conditions.integration, conditions.rescaling)
            moves.advance(*given, conditions.integration, finish=False)
        self._press()

    def _press(self) -> None:
        barostat = self._conditions.barostat
        if barostat is not None:
            self._moves.press(self._motion, self._totals, self._conditions.integration, barostat)
            check_strain(self._motion)

    def observe(self) -> Observation:
        """Return the observation at the end of the last block, when no block is queued."""
        motion, sums = self._motion, Totals(self._totals.clone())
        sources = motion.done_positions, motion.done_velocities, motion.done_cell
        arrays = (tensor.numpy().copy() for tensor in (*sources, motion.done_heat, motion.work))
        state, progress = State(self.step, *arrays), motion.progress.numpy().copy()
        forces = self._forces.numpy().copy()
        known = None if self._uncertainty is None else self._uncertainty.copy()
        results = sums.energy.numpy(), sums.virial.numpy()
        return Observation(state, forces, *results, progress, known)

    def suspect(self) -> Suspect | None:
        """Return the atom to blame for an error; None if no forces are known."""
        if not self._is_evaluated:
            return None
        forces = self._forces * (self._motion.inverse_mass > 0)[:, None]
        return Suspect.of(self._positions, forces.numpy(), self._blamed)

    def _evaluate(self) -> None:
        """Compute forces and totals of the pending positions.

        Systems that have not moved since their last evaluation, at the end of a minimization, are
        skipped.
        """
        which: Sequence[int] = range(len(self._parts))
        if self._conditions.descent is None:
            self._check_contacts()
        else:
            last, self._minimized = self._minimized, self._positions.copy()
            if last is not None:
                new = (self._positions != last).any(axis=1)
                which = [k for k in which if new[self._parts[k]].any()]
        if which:
            self._compute(which)
        self._is_evaluated = True

    def _check_contacts(self) -> None:
        """Raise an `OverlappingAtomsError` if atoms of a system are too close."""
        for k, search in enumerate(self._contacts):
            part = self._parts[k]
            contact = search.find(self._positions[part], self._cells[k], self._pbc[k])
            if contact is not None:
                self._blamed = contact.first + part.start
                raise OverlappingAtomsError(str(contact))
