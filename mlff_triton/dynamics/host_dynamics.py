"""Simulations with any ASE calculator, step by step on the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError
from torch import Tensor

from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.calculators._fixed_atoms import moving_masses
from mlff_triton.calculators._plausibility import contact_limits
from mlff_triton.dynamics.threads import using_threads, warn_if_busy
from mlff_triton.engine.motion import (
    Conditions,
    FloatArray,
    Observation,
    State,
    Suspect,
    check_strain,
)
from mlff_triton.engine.totals import WIDTH, Totals
from mlff_triton.errors import InputError, OverlappingAtomsError
from mlff_triton.kernels.dynamics.reference.barostat import press
from mlff_triton.kernels.dynamics.reference.descent import descend
from mlff_triton.kernels.dynamics.reference.integrator import advance
from mlff_triton.kernels.dynamics.reference.rescaling import choose_scale
from mlff_triton.kernels.types.motion import Motion
from mlff_triton.neighbors.contacts import ContactSearch

Results = tuple[float, FloatArray, FloatArray | None]  # energy, forces, stress [3, 3]


class HostDynamics:
    """Molecular dynamics of several systems; see `mlff_triton.engine.motion.Dynamics`.

    Parameters
    ----------
    systems : sequence of Atoms
        The systems, which are copied. Atoms that they fix do not move.
    calculator : Calculator
        Any ASE calculator with energy, forces and, for a barostat, stress. One with a method
        ``calculate_many``, such as ours, computes all systems in one batch.
    threads : int, optional
        Number of threads of PyTorch; by default as many as it uses elsewhere.
    """

    @with_own_settings
    def __init__(
        self, systems: Sequence[Atoms], calculator: Calculator, threads: int | None = None
    ) -> None:
        self._systems = [atoms.copy() for atoms in systems]
        for atoms in self._systems:
            atoms.set_constraint()  # as the integrator alone keeps atoms in place
        self._calculator = calculator
        self._threads = threads
        if threads is not None:
            warn_if_busy(threads)
        counts = torch.tensor([len(atoms) for atoms in systems])
        positions = torch.zeros(int(counts.sum()), 3, dtype=torch.float64)
        cell = torch.zeros(len(systems), 3, 3, dtype=torch.float64)
        self._motion = Motion.zeros(positions, cell, counts)
        self._motion.inverse_mass.copy_(torch.from_numpy(1 / moving_masses(systems)))
        self._ends = counts.cumsum(0).tolist()
        self._queue: deque[tuple[int, bool]] = deque()
        self._found: list[Results] = [(np.nan, np.empty((0, 3)), None)] * len(systems)
        self._last: tuple[Tensor, Tensor] | None = None
        self._contacts = [ContactSearch(contact_limits(atoms.numbers)) for atoms in systems]
        self._blamed: int | None = None

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self._motion.clock[0, 0])

    @property
    def depth(self) -> int:
        """Number of blocks that may be queued: one, as nothing happens meanwhile."""
        return 1

    def begin(self, state: State, conditions: Conditions, *, is_continued: bool) -> Observation:
        """Compute forces, and prepare the next step."""
        self._set(state, conditions, is_continued=is_continued)
        with using_threads(self._threads):
            self._last = forces, totals = self._evaluate()
        self._is_evaluated = True
        self._start(forces, totals)
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
        self._is_evaluated = False

    @with_own_settings
    def _start(self, forces: Tensor, totals: Tensor) -> None:
        """Take the part of the first step that follows the first forces."""
        if self._conditions.descent is None:
            integration = self._conditions.integration
            advance(self._motion, forces, totals, integration, finish=False)
        self._press(totals)

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
        with using_threads(self._threads):
            self._advance_to(stop)
        return self.observe() if is_observed else None

    def _advance_to(self, stop: int) -> None:
        motion = self._motion
        motion.window[0], motion.window[1] = self.step, stop
        while self.step < stop:
            self._last = forces, totals = self._evaluate()
            if not np.isfinite(motion.positions.numpy()).all() or not totals[:, 0].isfinite().all():
                raise InputError("positions or energies are NaN or infinite")
            self._move(forces, totals)

    @with_own_settings
    def _move(self, forces: Tensor, totals: Tensor) -> None:
        """Take a step. The calculator computed its forces under the settings of its caller."""
        motion, conditions = self._motion, self._conditions
        given = motion, forces, totals, conditions.integration
        if conditions.descent is not None:
            descend(motion, forces, totals, conditions.descent)
        elif conditions.rescaling is None:
            advance(*given)
        else:
            advance(*given, start=False)
            choose_scale(motion, conditions.integration, conditions.rescaling)
            advance(*given, finish=False)
        self._press(totals)

    def _press(self, totals: Tensor) -> None:
        barostat = self._conditions.barostat
        if barostat is not None:
            press(self._motion, totals, self._conditions.integration, barostat)
            check_strain(self._motion)

    def observe(self) -> Observation:
        """Return what can be observed at the end of the last block, when none is queued."""
        assert self._last is not None  # as `begin` precedes everything else
        motion, (forces, totals) = self._motion, self._last
        sources = motion.done_positions, motion.done_velocities, motion.done_cell
        arrays = (tensor.numpy().copy() for tensor in (*sources, motion.done_heat, motion.work))
        sums = Totals(totals)
        state = State(self.step, *arrays)
        progress = motion.progress.numpy().copy()
        return Observation(
            state, forces.numpy(), sums.energy.numpy(), sums.virial.numpy(), progress
        )

    def suspect(self) -> Suspect | None:
        """Return the atom to blame for an error; None if no forces are known."""
        if self._last is None:
            return None
        forces = self._last[0] * (self._motion.inverse_mass > 0)[:, None]
        return Suspect.of(self._motion.positions.numpy(), forces.numpy(), self._blamed)

    def _evaluate(self) -> tuple[Tensor, Tensor]:
        """Return forces [N, 3] and totals [B, 11] of the pending positions."""
        motion = self._motion
        parts = np.split(motion.positions.numpy(), self._ends[:-1])
        waiting = [k for k, atoms in enumerate(self._systems) if self._is_new(atoms, parts[k])]
        for atoms, positions, cell in zip(self._systems, parts, motion.cell.numpy(), strict=True):
            atoms.set_positions(positions)
            atoms.cell.array[atoms.pbc] = cell[atoms.pbc]
        if self._conditions.descent is None:
            self._check_contacts()
        for k, results in zip(waiting, self._results(waiting), strict=True):
            self._found[k] = results
        totals = np.zeros((len(parts), WIDTH))
        forces = []
        for row, atoms, results in zip(totals, self._systems, self._found, strict=True):
            energy, force, stress = results
            row[0] = energy
            row[1:10] = np.nan if stress is None else (stress * _volume(atoms)).ravel()
            forces.append(force)
        return torch.from_numpy(np.concatenate(forces)), torch.from_numpy(totals)

    def _check_contacts(self) -> None:
        """Raise an `OverlappingAtomsError` if atoms of a system are too close."""
        for k, (atoms, search) in enumerate(zip(self._systems, self._contacts, strict=True)):
            contact = search.find(atoms.positions, atoms.cell.array, atoms.pbc)
            if contact is not None:
                self._blamed = contact.first + (self._ends[k - 1] if k else 0)
                raise OverlappingAtomsError(str(contact))

    def _is_new(self, atoms: Atoms, positions: FloatArray) -> bool:
        """Return False if a system that is minimized rests where it was evaluated last."""
        is_minimized = self._conditions.descent is not None and self._is_evaluated
        return not (is_minimized and np.array_equal(atoms.positions, positions))

    def _results(self, which: Sequence[int]) -> list[Results]:
        """Return energy, forces and stress [3, 3] of some systems."""
        systems = [self._systems[k] for k in which]
        many = getattr(self._calculator, "calculate_many", None)
        if many is None or len(systems) == 1:
            return [self._result(atoms) for atoms in systems]
        found = many(systems)
        return [(r["energy"], r["forces"], _matrix(r.get("stress"))) for r in found]

    def _result(self, atoms: Atoms) -> Results:
        atoms.calc = self._calculator
        energy, forces = float(atoms.get_potential_energy()), atoms.get_forces().copy()
        stress = None
        if atoms.pbc.all():
            try:
                stress = atoms.get_stress(voigt=False)
            except PropertyNotImplementedError:
                stress = None
        return energy, forces, stress


def _matrix(stress: FloatArray | None) -> FloatArray | None:
    """Convert a stress in Voigt's notation to a matrix."""
    if stress is None:
        return None
    xx, yy, zz, yz, xz, xy = stress
    return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


def _volume(atoms: Atoms) -> float:
    return abs(float(np.linalg.det(atoms.cell.array)))
