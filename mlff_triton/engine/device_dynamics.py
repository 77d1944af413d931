"""Simulations whose steps follow one another on the GPU without the host checking each one.

The host queues blocks of steps, and checks each block while the GPU runs the next one. A step is a
graph of the model and the integrator. The integrator advances nothing unless the step is valid (see
`mlff_triton.kernels.dynamics.integrator`). So it is enough to check how far a block has come. If a
block is incomplete, the host enlarges the matrix, and queues the missing steps.

The neighbor matrix is built every few steps; their number is chosen from its age at the end of past
intervals. Neither this number nor the size of blocks changes any result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlff_triton.engine.batch import Batch, to_tensor
from mlff_triton.engine.device_contacts import DeviceContacts
from mlff_triton.engine.device_neighbors import DeviceModel
from mlff_triton.engine.device_state import UNFIT, DeviceState, pinned
from mlff_triton.engine.motion import (
    Conditions,
    FloatArray,
    Observation,
    State,
    Suspect,
    UncertainAtomError,
    check_strain,
)
from mlff_triton.engine.step import Outputs
from mlff_triton.engine.step_graph import StepGraph
from mlff_triton.engine.totals import WIDTH, Totals
from mlff_triton.errors import InputError
from mlff_triton.kernels.common.compilation import compile_ahead
from mlff_triton.kernels.dynamics.barostat import press
from mlff_triton.kernels.dynamics.descent import descend
from mlff_triton.kernels.dynamics.integrator import advance
from mlff_triton.kernels.dynamics.rescaling import choose_scale
from mlff_triton.kernels.types.motion import Motion
from mlff_triton.kernels.types.status import AGE, NOT_FINITE, STALE, UNCERTAIN

DEPTH = 2
"""Number of blocks that are queued at a time."""
AIM = 0.75
"""Age of neighbor matrices when they are renewed, relative to the highest one."""
MEMORY = 8
"""Number of recent blocks whose oldest matrix is taken into account."""
FIRST_INTERVAL, LAST_INTERVAL = 3, 1000
"""Steps between two neighbor matrices: at the start, and at most."""


class Downloads:
    """Pinned memory for the results of a block that the host reads.

    Parameters
    ----------
    motion : Motion
        The state of the simulation.
    """

    def __init__(self, motion: Motion) -> None:
        device = motion.positions.device
        n_atoms, n_systems = len(motion.positions), len(motion.cell)
        self.clock = pinned(device, 3)  # see `wait`
        self._atoms = [pinned(device, n_atoms, 3) for _ in range(3)]
        self._heat = pinned(device, n_atoms)
        self._cell = pinned(device, n_systems, 3, 3)
        self._work = pinned(device, n_systems)
        self._totals = pinned(device, n_systems, WIDTH)
        self._progress = pinned(device, n_systems, 2)
        self._uncertainty: Tensor | None = None  # once it is known
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def queue(
        self, motion: Motion, aged: Tensor, contact_step: Tensor, outputs: Outputs | None
    ) -> None:
        """Queue the copies; without outputs, only the copy of the clock."""
        self.clock[0].copy_(motion.clock[0, 0], non_blocking=True)
        self.clock[1].copy_(aged, non_blocking=True)
        self.clock[2].copy_(contact_step, non_blocking=True)
        if outputs is not None:
            atoms = (motion.done_positions, motion.done_velocities, outputs.forces)
            sources = [
                *atoms,
                motion.done_heat,
                motion.done_cell,
                motion.work,
                outputs.totals.values,
                motion.progress,
            ]
            rest = [self._heat, self._cell, self._work, self._totals, self._progress]
            targets = [*self._atoms, *rest]
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
            known = outputs.uncertainty
            if known is not None:
                if self._uncertainty is None:
                    self._uncertainty = pinned(known.device, len(known), dtype=known.dtype)
                self._uncertainty.copy_(known, non_blocking=True)
        if self._event is not None:
            self._event.record()

    def wait(self) -> tuple[int, int, int]:
        """Wait for the copies.

        Returns
        -------
        tuple of int
            Steps done, age of the oldest neighbor matrix, and the step in which atoms have come too
            close, or 0.
        """
        if self._event is not None:
            self._event.synchronize()
        clock, age, contact_step = self.clock.tolist()
        return int(clock), int(age), int(contact_step)

    def observation(self) -> Observation:
        """Return copies of what was downloaded."""
        positions, velocities, forces = (tensor.numpy().copy() for tensor in self._atoms)
        rest = (self._cell, self._heat, self._work)
        state = State(int(self.clock[0]), positions, velocities, *(t.numpy().copy() for t in rest))
        totals = Totals(self._totals.clone())
        progress = self._progress.numpy().copy()
        known = self._uncertainty
        uncertainty = None if known is None else known.numpy().astype(np.float64)
        sums = totals.energy.numpy(), totals.virial.numpy()
        return Observation(state, forces, *sums, progress, uncertainty)


@dataclass
class Block:
    """Steps that were queued together: all steps after ``start``, up to ``stop``.

    Attributes
    ----------
    start, stop : int
        Steps done before and after.
    is_observed : bool
        True if the state is downloaded at the end.
    downloads : Downloads
        Memory that it is downloaded to.
    lifetime : int
        Number of steps served by the neighbor matrix that this block replaced; 0 for none.
    """

    start: int
    stop: int
    is_observed: bool
    downloads: Downloads
    lifetime: int = 0


class DeviceDynamics:
    """Molecular dynamics of a batch on a GPU.

    Call `begin`, then `queue` and `collect` blocks of steps, at most `DEPTH` at a time.

    Parameters
    ----------
    model : DeviceModel
        The model, on the GPU.
    batch : Batch
        The systems.
    masses : float64 [N]
        amu; infinite for atoms that do not move.
    on_gpu : callable
        Returns a context that makes the GPU current and explains a lack of memory.
    """

    def __init__(
        self,
        model: DeviceModel,
        batch: Batch,
        masses: FloatArray,
        limits: FloatArray | None,
        on_gpu: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._state = DeviceState(model, len(batch.numbers), len(batch.boxes))
        self._state.set_batch(batch)
        atoms = self._state.atoms
        counts = torch.from_numpy(batch.counts)
        self._motion = Motion.zeros(atoms.positions, atoms.cell, counts)
        self._motion.inverse_mass.copy_(to_tensor(1 / masses, model.device))
        self._contacts = DeviceContacts(self._state, self._motion, limits)
        self._on_gpu = on_gpu
        self._stepping: StepGraph[Outputs] = StepGraph(model.pool)
        self._downloads = [Downloads(self._motion) for _ in range(DEPTH)]
        self._free = deque(self._downloads)
        self._blocks: deque[Block] = deque()
        self._conditions: Conditions | None = None
        self._outputs: Outputs | None = None
        self._aged = torch.zeros_like(self._motion.oldest)
        self._interval, self._since = FIRST_INTERVAL, 0
        self._aging: deque[float] = deque(maxlen=MEMORY)  # per step, in recent blocks
        self._repaired_at = -1
        self._repairs = 0

    def begin(self, state: State, conditions: Conditions, *, is_continued: bool) -> Observation:
        """Compute forces, and prepare the next step.

        Parameters
        ----------
        state : State
            The systems.
        conditions : Conditions
            Integrator, thermostats and barostat, from here on.
        is_continued : bool
            True if the last step of this state was taken under the same conditions.

        Raises
        ------
        InputError
            If a position is not finite, a cell is far too small, or atoms lie too far outside
            theirs.
        OverlappingAtomsError
            If two atoms coincide.
        BackendError
            If the GPU has too little memory. The message says how much is needed.
        """
        is_other = self._conditions is None or conditions.constants != self._conditions.constants
        self._conditions = conditions
        if is_other:
            self._stepping.discard()
        with self._on_gpu(), torch.no_grad():
            self._upload(state, conditions, is_continued)
            self._outputs = outputs = self._forces()
            if is_other:
                compile_ahead(self._launch_all)
            self._start(outputs)
            downloads = self._free[0]
            downloads.queue(self._motion, self._aged, self._contacts.step, outputs)
            downloads.wait()
            self._capture()
            return downloads.observation()

    def _upload(self, state: State, conditions: Conditions, is_continued: bool) -> None:
        motion, device = self._motion, self._state.model.device
        batch = self._state.batch.with_cells(state.cell)
        self._state.set_batch(batch)
        self._state.atoms.upload_boxes(batch.boxes)  # the pending ones may differ from the last
        given: dict[str, NDArray[Any]] = {
            "positions": state.positions,
            "done_positions": state.positions,
            "done_velocities": state.velocities,
            "done_heat": state.heat,
            "work": state.work,
            "temperature": conditions.temperature,
            "stream": conditions.stream,
            "lost": conditions.lost,
        }
        if conditions.stiffness is not None:
            given["stiffness"] = conditions.stiffness
        for name, array in given.items():
            getattr(motion, name).copy_(to_tensor(array, device))
        motion.done_cell.copy_(motion.cell)
        motion.reset(state.step, conditions.descent, is_continued=is_continued)
        self._contacts.reset(is_watching=conditions.descent is None)
        self._blocks.clear()
        self._free = deque(self._downloads)
        self._next = state.step

    def _forces(self) -> Outputs:
        """Compute energies and forces of the current positions, and wait for them."""
        outputs: Outputs | None = None

        def run() -> int:
            nonlocal outputs
            outputs = self._state.launch()
            return int(outputs.totals.status.max())

        self._state.settle(run)
        assert outputs is not None
        return outputs

    def queue(self, stop: int, *, is_observed: bool) -> None:
        """Queue all steps up to ``stop`` and, if it is observed, the download of the state."""
        block = Block(self._next, stop, is_observed, self._free.popleft())
        self._blocks.append(block)
        self._next = stop
        with self._on_gpu(), torch.no_grad():
            self._launch_block(block, block.start)

    def collect(self) -> Observation | None:
        """Wait for the oldest block, and return what was observed at its end, if anything.

        Raises
        ------
        InputError, OverlappingAtomsError, BackendError
            As `begin` does, or if atoms have come too close to one another. `step` then tells how
            many steps were valid.
        """
        block = self._blocks[0]
        with self._on_gpu(), torch.no_grad():
            step, age, contact_step = block.downloads.wait()
            while step < block.stop and not contact_step:
                self._repair()
                for other in self._blocks:
                    self._launch_block(other, max(other.start, self.step))
                step, age, contact_step = block.downloads.wait()
            if contact_step:
                self._contacts.raise_contact()
        self._adapt(age, block.lifetime)
        self._blocks.popleft()
        self._free.append(block.downloads)
        return self._checked(block.downloads.observation()) if block.is_observed else None

    def _checked(self, observation: Observation) -> Observation:
        """Raise `InputError` if the Coulomb energy is no longer defined, or its mesh too small."""
        batch = self._state.batch.with_cells(observation.state.cell)
        for box in batch.boxes:
            self._state.model.parameters.check_box(box)
        if self._state.mesh_choice is not None:
            self._state.mesh_choice.check(replace(batch, positions=observation.state.positions))
        return observation

    def observe(self) -> Observation:
        """Return the observation at the end of the last block, when no block is queued."""
        downloads = self._free[0]
        with self._on_gpu():
            downloads.queue(self._motion, self._aged, self._contacts.step, self._outputs)
            downloads.wait()
        return downloads.observation()

    def suspect(self) -> Suspect | None:
        """Return the atom to blame for an error; None if no forces are known. This waits."""
        if self._outputs is None:
            return None
        forces = self._outputs.forces * (self._motion.inverse_mass > 0)[:, None]
        positions, pushes = self._motion.positions.cpu().numpy(), forces.cpu().numpy()
        return Suspect.of(positions, pushes, self._contacts.first)

    @property
    def step(self) -> int:
        """Number of valid steps done. This waits for the GPU."""
        done, contact_step = int(self._motion.clock[0, 0]), int(self._contacts.step)
        return min(done, contact_step - 1) if contact_step else done

    @property
    def depth(self) -> int:
        """Number of blocks that may be queued."""
        return DEPTH

    def _launch_block(self, block: Block, start: int) -> None:
        """Launch the steps of a block after ``start``, and the work that follows them."""
        self._aged.zero_()
        self._motion.window[0].fill_(block.start)
        self._motion.window[1].fill_(block.stop)
        for _ in range(start, block.stop):
            if self._since >= self._interval:
                block.lifetime = self._since
                self._rebuild()
            self._run_step()
            self._since += 1
        observed = self._outputs if block.is_observed else None
        block.downloads.queue(self._motion, self._aged, self._contacts.step, observed)

    def _run_step(self) -> Outputs:
        layout = self._state.neighbors.layout
        self._outputs = self._stepping.run(self._launch_step, layout)
        return self._outputs

    def _launch_step(self) -> Outputs:
        """Launch a step of the model, and of the integrator or the minimization."""
        outputs, motion, conditions = self._state.launch(), self._motion, self._conditions
        assert conditions is not None  # as `begin` precedes everything else
        if conditions.most_uncertain is not None and outputs.uncertainty is not None:
            above = outputs.uncertainty.amax() > conditions.most_uncertain
            outputs.totals.status.add_(above * UNCERTAIN)  # so that no atom moves on
        forces, totals = outputs.forces, outputs.totals.values
        given = motion, forces, totals, conditions.integration
        if conditions.descent is not None:
            descend(motion, forces, totals, conditions.descent)
        elif conditions.rescaling is None:
            advance(*given)
        else:
            advance(*given, start=False)
            choose_scale(motion, conditions.integration, conditions.rescaling)
            advance(*given, finish=False)
        self._press(outputs, conditions)
        return outputs

    def _start(self, outputs: Outputs) -> None:
        """Launch the part of the first step that follows the first forces."""
        conditions = self._conditions
        assert conditions is not None
        if conditions.descent is None:
            forces, totals = outputs.forces, outputs.totals.values
            advance(self._motion, forces, totals, conditions.integration, finish=False)
        self._press(outputs, conditions)

    def _launch_all(self) -> None:
        """Launch each kernel of a simulation; most were compiled with the first forces."""
        self._contacts.launch()
        self._start(self._launch_step())

    def _press(self, outputs: Outputs, conditions: Conditions) -> None:
        """Launch the barostat, if there is one; it acts when it is due."""
        if conditions.barostat is not None:
            press(self._motion, outputs.totals.values, conditions.integration, conditions.barostat)

    def _capture(self) -> None:
        """Capture the graphs, without taking a step."""
        self._motion.window.fill_(-1)
        self._run_step()
        self._rebuild()

    def _rebuild(self) -> None:
        """Queue a new neighbor matrix, and record the age of the last one."""
        torch.maximum(self._aged, self._motion.oldest, out=self._aged)
        self._motion.oldest.zero_()
        self._state.rebuild()
        self._contacts.note()
        self._since = 0

    def _raise_uncertain(self, outputs: Outputs) -> None:
        """Raise the error for atoms with a large uncertainty. This waits."""
        assert outputs.uncertainty is not None
        atoms = self._state.atoms
        found = atoms.positions, atoms.cell, outputs.uncertainty.double()
        raise UncertainAtomError.of(self.step + 1, *(tensor.cpu().numpy() for tensor in found))

    def _adapt(self, age: int, lifetime: int) -> None:
        """Choose the interval between neighbor matrices from how fast recent ones have aged."""
        if lifetime:
            self._aging.append(max(age, 1) / lifetime)
            wanted = int(AIM * (AGE + 1) / max(self._aging))
            self._interval = max(1, min(wanted, 2 * self._interval, LAST_INTERVAL))

    def _repair(self) -> None:
        """Make the neighbor matrix fit the next step, or raise the error that prevents it."""
        state, step = self._state, self.step
        self._repairs = self._repairs + 1 if step == self._repaired_at else 0
        self._repaired_at = step
        outputs = self._run_step()
        worst = int(outputs.totals.status.max())
        check_strain(self._motion)
        if worst & UNCERTAIN and not worst & ~(UNCERTAIN | AGE):  # otherwise it may be wrong
            self._raise_uncertain(outputs)
        if worst & NOT_FINITE or not worst & (STALE | UNFIT):
            state.raise_problem(worst)
        if self._repairs > 2:
            raise InputError(
                "the neighbor list does not survive a single time step: use a larger skin, or a "
                "smaller time step"
            )
        self._interval = max(1, self._interval // 2)
        if worst & UNFIT:
            state.build()
            self._capture()
        else:
            self._rebuild()
