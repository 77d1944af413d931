"""The simulation driver: preparation, stages, records, and exact restarts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator

from mlff_triton.dynamics import outputs
from mlff_triton.dynamics.integrators import Integrator, State, check_ensembles, make_integrator
from mlff_triton.dynamics.outputs import LogRow, RecordFile, frame, observe
from mlff_triton.dynamics.preparation import Minimization, draw_momenta, minimize
from mlff_triton.dynamics.restart import Snapshot, save_restart
from mlff_triton.dynamics.settings import Settings, Span
from mlff_triton.errors import InputError, MlffTritonError, SimulationError


class Monitor:
    """Callbacks on the progress of a run; subclasses override them."""

    def minimizing(self, progress: Minimization) -> None:
        """Receive the progress after each iteration of the minimization."""

    def stepped(self, step: int, potential: float, temperature: float) -> None:
        """Receive number, potential energy (eV) and temperature (K) after each time step."""


class Simulation:
    """Molecular dynamics in stages, with exact restarts.

    Create a simulation with `start` or `resume`, then call `run`.

    Attributes
    ----------
    atoms : Atoms
        The current state of the system.
    settings : Settings
        Stages and conditions.
    directory : Path
        Directory of the output files.
    step : int
        Number of time steps done.
    is_prepared : bool
        True once minimization and initial velocities are done.
    minimization : Minimization or None
        Result of the minimization, if there was one.
    """

    def __init__(self, snapshot: Snapshot, calculator: Calculator, directory: Path) -> None:
        self.atoms = snapshot.atoms
        self.atoms.calc = calculator
        self.settings = snapshot.settings
        self.directory = directory
        self.step = snapshot.step
        self.minimization = snapshot.minimization
        self._recipe = snapshot.recipe
        self.is_prepared = snapshot.is_prepared
        self._rng = np.random.default_rng()
        self._rng.bit_generator.state = snapshot.random_state
        self._integrator_state = snapshot.integrator_state
        self._trajectory = RecordFile(
            directory / outputs.TRAJECTORY, snapshot.sizes[outputs.TRAJECTORY]
        )
        self._log = RecordFile(directory / outputs.LOG, snapshot.sizes[outputs.LOG])

    @classmethod
    def start(
        cls,
        atoms: Atoms,
        calculator: Calculator,
        settings: Settings,
        directory: str | Path,
        *,
        overwrite: bool = False,
        recipe: dict[str, str] | None = None,
    ) -> Simulation:
        """Set up a new run. Nothing is written unless the energy of the structure is finite.

        Parameters
        ----------
        atoms : Atoms
            The structure, which is copied.
        calculator : Calculator
            Any ASE calculator with energy, forces and, for npt, stress. Restarts are exact if the
            same positions always give bitwise the same results.
        settings : Settings
            Stages and conditions.
        directory : path
            Directory for the output files.
        overwrite : bool
            If True, remove the files of an earlier run from the directory.
        recipe : dict of str, optional
            The caller's own record of how to make the calculator, stored in the restart file.

        Returns
        -------
        Simulation

        Raises
        ------
        InputError
            If the structure does not suit the settings, or its energy is not finite.
        OutputError
            If the directory is not empty or cannot be written.
        """
        folder = Path(directory)
        outputs.check_directory(folder, overwrite)
        check_ensembles(atoms, settings)
        system = atoms.copy()
        system.calc = calculator
        if not np.isfinite(system.get_potential_energy()):
            raise InputError("the energy of the structure is NaN or infinite: check its geometry")
        outputs.clear_directory(folder)
        snapshot = Snapshot(
            settings=settings,
            recipe=recipe or {},
            atoms=system,
            step=0,
            is_prepared=False,
            minimization=None,
            random_state=dict(np.random.default_rng(settings.seed).bit_generator.state),
            integrator_state={},
            sizes={outputs.TRAJECTORY: 0, outputs.LOG: 0},
        )
        save_restart(snapshot, folder / outputs.RESTART)
        return cls(snapshot, calculator, folder)

    @classmethod
    def resume(
        cls, snapshot: Snapshot, calculator: Calculator, directory: str | Path
    ) -> Simulation:
        """Continue a run in its own directory, without the records written after the snapshot.

        Parameters
        ----------
        snapshot : Snapshot
            State of the run: see `load_restart`.
        calculator : Calculator
            A calculator like the one that the run was started with.
        directory : path
            Directory of the run.

        Returns
        -------
        Simulation

        Raises
        ------
        OutputError
            If the files of the run are missing or shorter than at the time of the snapshot.
        """
        return cls(snapshot, calculator, Path(directory))

    @property
    def restart_path(self) -> Path:
        """Path of the restart file."""
        return self.directory / outputs.RESTART

    @property
    def is_complete(self) -> bool:
        """True if all stages are done."""
        return self.step == self.settings.total_steps

    def run(
        self, monitor: Monitor | None = None, should_stop: Callable[[], bool] = lambda: False
    ) -> bool:
        """Run to the end, or until told to stop.

        Parameters
        ----------
        monitor : Monitor, optional
            Callbacks on the progress.
        should_stop : callable
            Function called after every step. If it returns True, a restart file, the last frame
            and its log row are written, and the run ends. `resume` then removes a frame and a row
            that an uninterrupted run would not have.

        Returns
        -------
        bool
            True if the run is complete.

        Raises
        ------
        SimulationError
            If the simulation blew up. The restart file contains the last recorded step.
        OutputError
            If a file cannot be written.
        """
        watcher = monitor or Monitor()
        if not self.is_prepared and not self._prepare(watcher, should_stop):
            return False
        for span in self.settings.spans:
            if self.step < span.stop and not self._run_span(span, watcher, should_stop):
                return False
        return True

    def _prepare(self, monitor: Monitor, should_stop: Callable[[], bool]) -> bool:
        """Minimize and draw velocities. A run stopped meanwhile resumes from the beginning."""
        if self.settings.minimize:
            for progress in minimize(self.atoms):
                self.minimization = progress
                monitor.minimizing(progress)
                if should_stop():
                    return False
        draw_momenta(self.atoms, self.settings.temperature, self._rng)
        self._log.append(LogRow.header())
        self.is_prepared = True
        first = self.settings.spans[0]
        self._record(self._integrator(first))
        return True

    def _run_span(self, span: Span, monitor: Monitor, should_stop: Callable[[], bool]) -> bool:
        integrator = self._integrator(span)
        while self.step < span.stop:
            self._advance(integrator, monitor)
            is_due = self.settings.is_due(self.step)
            if is_due:
                self._record(integrator)
            if should_stop() and not self.is_complete:
                if not is_due:
                    self._record_out_of_turn(integrator)
                return False
        return True

    def _integrator(self, span: Span) -> Integrator:
        """Make the integrator of a stage, with its saved state if the stage is in progress."""
        integrator = make_integrator(span.ensemble, self.atoms, self.settings, self._rng)
        if self.step > span.start:
            integrator.set_state(self._integrator_state)
        return integrator

    def _advance(self, integrator: Integrator, monitor: Monitor) -> None:
        """Take one step, and raise `SimulationError` if its result is not plausible."""
        try:
            with np.errstate(all="ignore"):  # overflows are detected below
                integrator.step()
                potential = float(self.atoms.get_potential_energy())
                temperature = float(self.atoms.get_temperature())
        except MlffTritonError as error:
            raise SimulationError(self._failure(str(error))) from error
        limit = 10 * self.settings.temperature + 10_000
        finite = np.isfinite(self.atoms.positions).all() and np.isfinite(potential)
        if not (finite and temperature <= limit):  # false for NaN, too
            raise SimulationError(
                self._failure(f"energy {potential:g} eV, temperature {temperature:.4g} K")
            )
        self.step += 1
        monitor.stepped(self.step, potential, temperature)

    def _failure(self, reason: str) -> str:
        return (
            f"the simulation blew up in step {self.step + 1} ({reason}): minimize first, or use a "
            f"smaller time step; {self.restart_path} holds the last good frame"
        )

    def _record(self, integrator: Integrator) -> None:
        """Write a frame, a log row, and a restart file that includes both."""
        self._append(integrator)
        self._save(integrator.get_state())

    def _record_out_of_turn(self, integrator: Integrator) -> None:
        """Write a restart file, then a frame and a log row that it does not include.

        An uninterrupted run has no record of this step, so `resume` removes it.
        """
        self._save(integrator.get_state())
        self._append(integrator)

    def _append(self, integrator: Integrator) -> None:
        row = observe(
            self.atoms,
            step=self.step,
            time=self.settings.time(self.step),
            stage=self.settings.span_of(self.step).label,
            conserved=integrator.conserved_energy(),
        )
        self._trajectory.append(frame(self.atoms, row))
        self._log.append(row.line())

    def _save(self, integrator_state: State) -> None:
        snapshot = Snapshot(
            settings=self.settings,
            recipe=self._recipe,
            atoms=self.atoms,
            step=self.step,
            is_prepared=self.is_prepared,
            minimization=self.minimization,
            random_state=dict(self._rng.bit_generator.state),
            integrator_state=integrator_state,
            sizes={outputs.TRAJECTORY: self._trajectory.size, outputs.LOG: self._log.size},
        )
        save_restart(snapshot, self.restart_path)
