"""What a user sees of a run: progress while it goes, a table when it is done."""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from mlff_triton._common.progress import ProgressBar
from mlff_triton.dynamics import outputs
from mlff_triton.dynamics.preparation import MAX_FORCE, Minimization
from mlff_triton.dynamics.settings import Settings
from mlff_triton.dynamics.simulation import Monitor, Simulation
from mlff_triton.dynamics.summary import StageRecord, energy_drift, read_log

SECONDS_A_DAY = 86400


class Reporter(ProgressBar, Monitor):
    """Progress of a run on a console.

    Parameters
    ----------
    console : Console
        Where to show it.
    settings : Settings
        Of the run.
    first_step : int
        Step at which this session begins.
    """

    def __init__(self, console: Console, settings: Settings, first_step: int) -> None:
        super().__init__(console, "preparing", settings.total_steps, first_step)
        self.settings = settings
        self.steps_done = 0
        self._first_step = first_step
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall time since the first time step, or since the beginning before it."""
        return time.monotonic() - self._started

    @property
    def nanoseconds_a_day(self) -> float:
        """Speed of the time steps."""
        simulated = self.settings.time(self.steps_done) / 1000
        return simulated / max(self.seconds, 1e-9) * SECONDS_A_DAY

    def minimizing(self, progress: Minimization) -> None:
        """Show the largest force, and let the clock of the dynamics start after it."""
        self._show(
            "minimizing",
            self._first_step,
            f"iteration {progress.iterations}, largest force {progress.max_force:.3f} eV/Å",
        )
        self._started = time.monotonic()

    def stepped(self, step: int, potential: float, temperature: float) -> None:
        """Show speed, energy and temperature."""
        self.steps_done = step - self._first_step
        self._show(
            self.settings.span_of(step).label,
            step,
            f"{self.nanoseconds_a_day:.3g} ns/day, {potential:.3f} eV, {temperature:.0f} K",
        )

    def _show(self, title: str, step: int, state: str) -> None:
        line = f"{title}: step {step} of {self.settings.total_steps}, {state}"
        self.show(step, state, line, title)


def summary_table(simulation: Simulation, reporter: Reporter) -> Table:
    """Make the table at the end of a run."""
    table = Table(title="Molecular dynamics", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("atoms", str(len(simulation.atoms)))
    table.add_row("steps", f"{simulation.step} of {simulation.settings.total_steps}")
    table.add_row("wall time", f"{reporter.seconds:.1f} s for {reporter.steps_done} steps")
    table.add_row("speed", f"{reporter.nanoseconds_a_day:.3g} ns/day")
    if simulation.minimization is not None:
        table.add_row("minimization", _minimization_text(simulation.minimization))
    for record in read_log(simulation.directory / outputs.LOG):
        table.add_row(f"stage {record.label}", _stage_text(record, len(simulation.atoms)))
    present = [name for name in outputs.OUTPUTS if (simulation.directory / name).exists()]
    table.add_row(f"files in {simulation.directory}", ", ".join(present))
    return table


def _minimization_text(minimization: Minimization) -> str:
    verdict = "" if minimization.converged else f", not converged to {MAX_FORCE} eV/Å"
    return (
        f"largest force {minimization.max_force:.3f} eV/Å after {minimization.iterations} "
        f"iterations{verdict}"
    )


def _stage_text(record: StageRecord, n_atoms: int) -> str:
    text = f"mean temperature {record.temperature.mean():.1f} K"
    drift = energy_drift(record, n_atoms) if record.label.endswith("nve") else None
    if drift is None:
        return text
    return f"{text}, energy drift {drift.slope:.2e} ± {drift.error:.1e} eV/atom/ps"
