"""The simulation driver: preparation, stages, records, and exact restarts."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator

from mlff_triton._common.files import reported
from mlff_triton.dynamics import outputs
from mlff_triton.dynamics.bonds import Bonds
from mlff_triton.dynamics.conditions import conditions_of
from mlff_triton.dynamics.division import DeviceProcesses, divide
from mlff_triton.dynamics.exchange import counted, exchange
from mlff_triton.dynamics.failures import Failure, describe, find_failure
from mlff_triton.dynamics.formats import change_format, write_topologies
from mlff_triton.dynamics.lock import DirectoryLock
from mlff_triton.dynamics.memory import explain_shortage
from mlff_triton.dynamics.outputs import LogRow, Records, frames, observe
from mlff_triton.dynamics.pace import Pace
from mlff_triton.dynamics.preparation import (
    Minimization,
    draw_momenta,
    minimize,
    take_systems,
    warn_of_densities,
)
from mlff_triton.dynamics.restart import Snapshot, save_restart
from mlff_triton.dynamics.settings import Settings
from mlff_triton.dynamics.stages import Span
from mlff_triton.dynamics.stiffness import measure_stiffness
from mlff_triton.dynamics.systems import make_dynamics, put_state, state_of
from mlff_triton.dynamics.uncertain import check_limit, knows_uncertainty, save_uncertain
from mlff_triton.engine.motion import Conditions, Dynamics, Observation, UncertainAtomError
from mlff_triton.errors import DeviceMemoryError, MlffTritonError, SimulationError


class Monitor:
    """Callbacks on the progress of a run; subclasses override them."""

    def minimizing(self, progress: Minimization) -> None:
        """Receive the progress of the minimization, several times per second."""

    def stepped(self, step: int) -> None:
        """Receive the number of steps done, several times per second if steps are fast.

        The number of steps done before comes first, when everything is ready for the next step.
        """

    def observed(self, row: LogRow) -> None:
        """Receive each log row of the first system."""


class Simulation:
    """Molecular dynamics of one or several systems in stages, with exact restarts.

    Create a simulation with `start` or `resume`, then call `run`. With our calculator on a GPU, all
    steps run there, and systems are computed in one batch. With any other calculator, they run on
    the host. Several devices divide the systems, each in its own process. Results depend neither on
    the number of systems or devices nor on interruptions. The directory is locked from `start` or
    `resume` to the end of `run`.

    Attributes
    ----------
    systems : list of Atoms
        The systems, as last recorded.
    settings : Settings
        Stages and conditions.
    directory : Path
        Directory of the output files.
    step : int
        Number of time steps done.
    is_prepared : bool
        True once minimization and initial velocities are done.
    minimization : Minimization or None
        Result of the minimization of all systems, if there was one.
    temperatures : tuple of float
        Current temperature of each system in K.
    bonds : Bonds or None
        Covalent bonds at the start, once it is prepared.
    exchanges : tuple of (int, int)
        Attempts to exchange temperatures, and exchanges, of each pair of neighbors in the ladder.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        calculator: Calculator,
        directory: Path,
        lock: DirectoryLock,
        division: DeviceProcesses | None = None,
    ) -> None:
        self.systems = snapshot.systems
        for atoms in self.systems:
            atoms.calc = calculator
        self.settings = snapshot.settings
        self.directory = directory
        self.minimization = snapshot.minimization
        self.temperatures = snapshot.temperatures
        self._stiffness = snapshot.stiffness
        self.is_prepared = snapshot.is_prepared
        self.bonds = snapshot.bonds
        self.exchanges = snapshot.exchanges
        self._calculator = calculator
        self._division = division
        self._recipe = snapshot.recipe
        self._state = snapshot.state
        self._reached = snapshot.state.step
        self._is_new = False
        self._lock = lock
        known = knows_uncertainty(calculator)
        self._records = Records(directory, self.settings, len(self.systems), snapshot.sizes, known)
        self._most_uncertain: float | None = None

    @classmethod
    def start(
        cls,
        atoms: Atoms | Sequence[Atoms],
        calculator: Calculator,
        settings: Settings,
        directory: str | Path,
        *,
        overwrite: bool = False,
        recipe: dict[str, str] | None = None,
        device: str | None = None,
    ) -> Simulation:
        """Set up a new run. Nothing is written unless the energies of the structures are finite.

        Parameters
        ----------
        atoms : Atoms or sequence of Atoms
            The structure or structures, which are copied. Each is simulated on its own. Atoms that
            they fix do not move.
        calculator : Calculator
            Any ASE calculator with energy, forces and, for npt, stress. Restarts are exact if equal
            positions always give bitwise equal results.
        settings : Settings
            Stages and conditions.
        directory : path
            Directory for the output files.
        overwrite : bool
            If True, remove the files of an earlier run from the directory.
        recipe : dict of str, optional
            The caller's own record of how to make the calculator, stored in the restart file.
        device : str, optional
            Devices that divide the systems, such as "cuda:0,cuda:1", if the calculator is ours; by
            default, the calculator moves all of them on its own.

        Returns
        -------
        Simulation

        Raises
        ------
        InputError
            If a structure does not suit the settings, has a constraint that does more than fix
            atoms, or has an energy that is not finite, or if devices cannot divide the systems.
        OutputError
            If the directory is not empty, another run writes to it, or it cannot be written.
        """
        folder = Path(directory)
        outputs.check_directory(folder, overwrite)
        count = 1 if isinstance(atoms, Atoms) else len(atoms)
        division = divide(calculator, device, count)
        systems, settings = take_systems(atoms, calculator, settings)
        snapshot = Snapshot(
            settings=settings,
            recipe=recipe or {},
            systems=systems,
            state=state_of(systems),
            temperatures=settings.spans[0].temperatures(len(systems)),
        )
        with reported(folder):
            folder.mkdir(parents=True, exist_ok=True)
        lock = DirectoryLock(folder)
        with lock.kept():
            outputs.check_directory(folder, overwrite)  # again, because another run may have begun
            outputs.clear_directory(folder)
            write_topologies(folder, settings, systems)
            save_restart(snapshot, folder / outputs.RESTART)
            return cls(snapshot, calculator, folder, lock, division)

    @classmethod
    def resume(
        cls,
        snapshot: Snapshot,
        calculator: Calculator,
        directory: str | Path,
        *,
        trajectory: str | None = None,
        device: str | None = None,
    ) -> Simulation:
        """Continue a run in its own directory, without the records written after the snapshot.

        Parameters
        ----------
        snapshot : Snapshot
            State of the run: see `load_restart`, `Snapshot.extended` for more steps, and
            `Snapshot.continued` for further stages.
        calculator : Calculator
            A calculator like the one that the run was started with.
        directory : path
            Directory of the run.
        trajectory : {"xyz", "dcd", "xtc"}, optional
            Another format; trajectories then continue in new files beside the old ones.
        device : str, optional
            As for `start`; it may differ from the device of the start.

        Returns
        -------
        Simulation

        Raises
        ------
        InputError
            If the other format does not suit the systems, or holds an earlier part of the run, or
            if devices cannot divide the systems.
        OutputError
            If another run writes to the directory, or files of the run are missing or shorter than
            at the time of the snapshot. Nothing is modified then.
        """
        folder = Path(directory)
        division = divide(calculator, device, len(snapshot.systems))
        warn_of_densities(calculator, snapshot.settings)
        lock = DirectoryLock(folder)
        with lock.kept():
            if trajectory not in (None, snapshot.settings.trajectory):
                snapshot = change_format(snapshot, folder, trajectory)
            simulation = cls(snapshot, calculator, folder, lock, division)
            # First, because it fits the files either way
            save_restart(snapshot, simulation.restart_path)
            simulation._records.cut()
            return simulation

    @property
    def atoms(self) -> Atoms:
        """The first system."""
        return self.systems[0]

    @property
    def inputs(self) -> list[str]:
        """Name of the input of each system, if the recipe has several of them."""
        return self._recipe.get("inputs", "").splitlines()

    @property
    def step(self) -> int:
        """Number of time steps done."""
        return self._reached

    @property
    def restart_path(self) -> Path:
        """Path of the restart file."""
        return self.directory / outputs.RESTART

    @property
    def is_complete(self) -> bool:
        """True if all stages are done."""
        return self.step == self.settings.total_steps

    def run(
        self,
        monitor: Monitor | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        block: int | None = None,
        most_uncertain: float | None = None,
    ) -> bool:
        """Run to the end, or until told to stop.

        Parameters
        ----------
        monitor : Monitor, optional
            Callbacks on the progress.
        should_stop : callable
            Function called after every block of steps. If it returns True, a restart file, the last
            frame and its log row are written, and the run ends. `resume` then removes a frame and a
            row that an uninterrupted run would not have.
        block : int, optional
            Largest number of steps in a block; by default, as many as run in 0.2 s. No result
            depends on it. A minimization takes its iterations in blocks, too.
        most_uncertain : float, optional
            Expected error of a force in eV/Å above which to stop: every step is checked, and the
            structure that exceeds it is written to ``uncertain.xyz``.

        Returns
        -------
        bool
            True if the run is complete.

        Raises
        ------
        InputError
            If ``most_uncertain`` is not positive, the model does not know its uncertainty, or
            several devices divide the systems.
        SimulationError
            If the simulation blew up or fell apart, or an atom was too uncertain. The restart file
            contains the last recorded step.
        DeviceMemoryError
            If the GPU has too little memory. For replicas, the message says how many would fit.
        OutputError
            If a file cannot be written, or another run writes to the directory. The restart file is
            valid.
        """
        self._pace = Pace(block)
        check_limit(most_uncertain, self._calculator, is_divided=self._division is not None)
        self._most_uncertain = most_uncertain
        with self._lock, self._division or nullcontext():
            try:
                return self._run(monitor or Monitor(), should_stop)
            except DeviceMemoryError as error:
                if len(self.systems) == 1:
                    raise
                reason = str(error)
            finally:
                self._records.flush()
        raise self._memory_error(reason)  # out here, where the first error keeps nothing alive

    def _make_dynamics(self) -> Dynamics:
        """Return the dynamics of the systems: processes, or the calculator in this process."""
        if self._division is not None:
            return self._division.dynamics(self.systems, self.settings.threads)
        return make_dynamics(self.systems, self._calculator, self.settings.threads)

    def _run(self, monitor: Monitor, should_stop: Callable[[], bool]) -> bool:
        if not self.is_prepared and not self._prepare(monitor, should_stop):
            return False
        if self.is_complete:
            return True
        self._dynamics = self._make_dynamics()
        try:
            for span in self.settings.spans:
                if self.step < span.stop and not self._run_span(span, monitor, should_stop):
                    return False
        finally:
            del self._dynamics  # frees its memory
        return True

    def _prepare(self, monitor: Monitor, should_stop: Callable[[], bool]) -> bool:
        """Minimize and draw velocities. A run stopped during this resumes from the beginning."""
        settings = self.settings
        if settings.minimize and not self._minimize(monitor, should_stop):
            return False
        for k, atoms in enumerate(() if settings.keep_velocities else self.systems):
            first = settings.heat_from or self.temperatures[k]
            draw_momenta(atoms, first, np.random.default_rng((settings.seed, k)))
        self._state = state_of(self.systems)
        self.bonds = Bonds.of(self.systems)
        self._records.log()
        self.is_prepared = self._is_new = True
        return True

    def _minimize(self, monitor: Monitor, should_stop: Callable[[], bool]) -> bool:
        """Minimize all systems; return False if told to stop before the end."""
        dynamics = self._make_dynamics()
        with self._explained(dynamics):
            for progress in minimize(self.systems, dynamics, self._pace):
                self.minimization = progress
                monitor.minimizing(progress)
                if should_stop():
                    return False
        return True

    def _run_span(self, span: Span, monitor: Monitor, should_stop: Callable[[], bool]) -> bool:
        """Run a stage to its end; return False if told to stop before the end of the run."""
        if not self.settings.exchange_every:
            self.temperatures = span.temperatures(len(self.systems))
        observation = self._begin(span)
        self._first = observe(self.systems, observation, self.settings, self.temperatures)
        if self._is_new:
            self._is_new = False
            self._record(observation, monitor)
        monitor.stepped(self.step)
        queued: deque[int] = deque()
        for stop in self._stops(span):
            self._dynamics.queue(stop, is_observed=self._is_observed(stop, span))
            queued.append(stop)
            is_turn = self.settings.is_exchanged(stop) or stop == span.stop
            while len(queued) == self._dynamics.depth or (is_turn and queued):
                self._collect(queued.popleft(), span, monitor)
            if should_stop() and not self.is_complete:
                while queued:
                    self._collect(queued.popleft(), span, monitor)
                if not self.is_complete:
                    self._pause()
                    return False
        return True

    def _stops(self, span: Span) -> Iterator[int]:
        """Yield the last step of each block."""
        settings = self.settings
        regular = [settings.every, settings.log_every or settings.every, settings.exchange_every]
        step = self._state.step
        while step < span.stop:
            ends = [step + self._pace.block, span.stop, *(step // n * n + n for n in regular if n)]
            step = min(ends)
            yield step

    def _is_observed(self, step: int, span: Span) -> bool:
        settings = self.settings
        return settings.is_logged(step) or settings.is_exchanged(step) or step == span.stop

    def _begin(self, span: Span) -> Observation:
        conditions = conditions_of(self.settings, span, self.systems, self.temperatures)
        conditions = conditions._replace(most_uncertain=self._most_uncertain)
        self._reached = self._state.step
        is_continued = self._reached > span.start
        with self._explained(self._dynamics):
            if span.ensemble == "npt":
                conditions = self._with_stiffness(conditions, is_continued)
            observation = self._dynamics.begin(self._state, conditions, is_continued=is_continued)
            self._check_certain(observation)
        self._pace.start(self._reached)
        return observation

    def _check_certain(self, observation: Observation) -> None:
        """Raise an `UncertainAtomError` if a stage begins with too uncertain an atom."""
        known, most, state = observation.uncertainty, self._most_uncertain, observation.state
        if known is not None and most is not None and known.max() > most:
            raise UncertainAtomError.of(state.step, state.positions, state.cell, known)

    def _with_stiffness(self, conditions: Conditions, is_continued: bool) -> Conditions:
        """Add the stiffness of each system at the start of a stage, which barostats need."""
        if not is_continued or not any(self._stiffness):
            found = measure_stiffness(self.systems, self._dynamics, self._state, conditions)
            self._stiffness = tuple(found.tolist())
        return conditions._replace(stiffness=np.array(self._stiffness))

    def _collect(self, stop: int, span: Span, monitor: Monitor) -> None:
        """Wait for a block of steps, and record the observation at its end."""
        with self._explained(self._dynamics):
            observation = self._dynamics.collect()
        self._pace.look(stop)
        self._reached = stop
        if observation is not None:
            if self.settings.is_exchanged(stop):
                observation = self._exchange(observation, span)
            self._record(observation, monitor)
        monitor.stepped(stop)

    def _exchange(self, observation: Observation, span: Span) -> Observation:
        """Let replicas exchange temperatures, and continue from there."""
        settings, before = self.settings, self.temperatures
        state, self.temperatures = exchange(
            self.systems, observation, before, settings.seed, settings.exchange_every
        )
        turn = state.step // settings.exchange_every
        self.exchanges = counted(self.exchanges, before, self.temperatures, turn)
        self._state = state
        if self.temperatures != before and state.step < span.stop:
            self._begin(span)
        return replace(observation, state=state)

    @contextmanager
    def _explained(self, dynamics: Dynamics) -> Iterator[None]:
        """Turn errors of a step into errors that name the step and the atom."""
        try:
            yield
        except DeviceMemoryError:
            raise  # see `run`
        except UncertainAtomError as error:
            limit = self._most_uncertain or 0.0
            reason = save_uncertain(error, self.systems, limit, self.directory)
            raise SimulationError(
                f"{reason}, and {self.restart_path} the last recorded one"
            ) from error
        except SimulationError as error:
            raise SimulationError(
                f"{error}; {self.restart_path} holds the last good frame"
            ) from error
        except MlffTritonError as error:
            step = max(self._reached, dynamics.step)
            failure = Failure(str(error), dynamics.suspect())
            raise self._error(f"in step {step + 1}", failure) from error

    def _error(self, when: str, failure: Failure) -> SimulationError:
        """Return an error that says when and where a step or an iteration has failed."""
        what = f"{describe(failure.suspect, self.systems)} ({failure.reason})"
        if not self.is_prepared:
            when = when.replace("step", "iteration")
            return SimulationError(f"the minimization failed {when}{what}: check the structure")
        first = "" if self.settings.minimize else "minimize first"
        advice = ", or ".join(filter(None, [failure.advice, first, "use a smaller time step"]))
        return SimulationError(
            f"the simulation blew up {when}{what}: {advice}; {self.restart_path} holds the last "
            "good frame"
        )

    def _memory_error(self, reason: str) -> DeviceMemoryError:
        """Return an error that says how many systems fit the memory of the GPUs."""
        span = self.settings.span_of(self.step)
        n_devices = self._division.n_devices if self._division else 1

        def attempt(count: int) -> None:
            share = -(-count // n_devices)
            systems, temperatures = self.systems[:share], self.temperatures[:share]
            conditions = conditions_of(self.settings, span, systems, temperatures)
            dynamics = make_dynamics(systems, self._calculator)
            dynamics.begin(state_of(systems), conditions, is_continued=False)

        return explain_shortage(attempt, len(self.systems), reason)

    def _record(self, observation: Observation, monitor: Monitor) -> None:
        """Write log rows and, when they are due, frames and a restart file that includes both."""
        rows = observe(self.systems, observation, self.settings, self.temperatures)
        bonds = None if self.settings.reactive else self.bonds
        failure = find_failure(self.systems, rows, observation, self._first, bonds)
        if failure is not None:
            raise self._error(f"by step {observation.state.step}", failure)
        self._state = observation.state
        put_state(self._state, self.systems)
        step = self._state.step
        longer = self.settings.extended(1)
        if self.settings.is_logged(step):
            self._records.log(rows, is_lasting=longer.is_logged(step))
        if self.settings.is_due(step):
            found = frames(self.systems, observation, self.settings, self.temperatures)
            self._records.add(found, is_lasting=longer.is_due(step))
            self._save()
        monitor.observed(rows[0])

    def _pause(self) -> None:
        """Write a restart file of the last step, then a frame and a row that it does not include.

        An uninterrupted run has no record of this step, so `resume` removes it.
        """
        if self.settings.is_due(self.step):
            return
        observation = self._dynamics.observe()
        self._state = observation.state
        put_state(self._state, self.systems)
        self._save()
        if not self.settings.is_logged(self.step):
            rows = observe(self.systems, observation, self.settings, self.temperatures)
            self._records.log(rows, is_lasting=False)
        found = frames(self.systems, observation, self.settings, self.temperatures)
        self._records.add(found, is_lasting=False)

    def _save(self) -> None:
        """Have a restart file written after all records so far."""
        snapshot = Snapshot(
            settings=self.settings,
            recipe=self._recipe,
            systems=[copy.copy(atoms) for atoms in self.systems],
            state=self._state,
            temperatures=self.temperatures,
            stiffness=self._stiffness,
            is_prepared=self.is_prepared,
            minimization=self.minimization,
            bonds=self.bonds,
            exchanges=self.exchanges,
        )
        path = self.restart_path

        def save(sizes: dict[str, int], lasting_sizes: dict[str, int]) -> None:
            save_restart(replace(snapshot, sizes=sizes, lasting_sizes=lasting_sizes), path)

        self._records.call(save)
