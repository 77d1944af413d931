"""Reports on a run in the terminal: a progress bar during the run, and a table at its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ase import Atoms
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mlff_triton._common.progress import ProgressBar
from mlff_triton._common.text import printable
from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics import outputs
from mlff_triton.dynamics.outputs import LogRow, names, outputs_in
from mlff_triton.dynamics.preparation import MAX_FORCE, MAX_ITERATIONS, Minimization
from mlff_triton.dynamics.settings import Settings
from mlff_triton.dynamics.simulation import Monitor, Simulation
from mlff_triton.dynamics.summary import StageRecord, energy_drift, read_log, unsettled

SECONDS_PER_DAY = 86400


class Reporter(ProgressBar, Monitor):
    """Progress bar of a run, preceded by a bar for the iterations of a minimization.

    Parameters
    ----------
    console : Console
        Console to print to.
    settings : Settings
        Settings of the run.
    first_step : int
        Step from which the run starts or continues.

    Attributes
    ----------
    steps_done : int
        Number of time steps since then.
    seconds : float
        Wall time of these steps, s.
    """

    def __init__(self, console: Console, settings: Settings, first_step: int) -> None:
        super().__init__(console, "preparing", settings.total_steps, first_step)
        self.settings = settings
        self.steps_done = 0
        self.seconds = 0.0
        self._first_step = first_step
        self._began: float | None = None
        self._row: LogRow | None = None

    @property
    def nanoseconds_per_day(self) -> float:
        """Simulated time per day of wall time, ns."""
        simulated = self.settings.time(self.steps_done) / 1000
        return simulated / max(self.seconds, 1e-9) * SECONDS_PER_DAY

    def minimizing(self, progress: Minimization) -> None:
        """Show the iterations done, of the most that there may be, and the largest force."""
        state = f"largest force {progress.max_force:.3f} eV/Å"
        line = f"minimizing: iteration {progress.iterations}, {state}"
        self.show(progress.iterations, state, line, "minimizing", MAX_ITERATIONS)

    def stepped(self, step: int) -> None:
        """Show speed, and energy and temperature as last observed; the first call begins."""
        if self._began is None:
            self._began = time.monotonic()
            return
        self.steps_done = step - self._first_step
        self.seconds = time.monotonic() - self._began
        seen = self._row
        values = f", {seen.potential_eV:.3f} eV, {seen.temperature_K:.0f} K" if seen else ""
        label, total = self.settings.span_of(step).label, self.settings.total_steps
        state = f"{self.nanoseconds_per_day:.3g} ns/day{values}"
        self.show(step, state, f"{label}: step {step} of {total}, {state}", label, total)

    def observed(self, row: LogRow) -> None:
        """Keep the energy and temperature to show."""
        self._row = row


def summary_table(simulation: Simulation, reporter: Reporter) -> Table:
    """Make the table that ends a run."""
    table = Table(Column(style="bold"), "", title="Molecular dynamics", show_header=False)
    systems = simulation.systems
    table.add_row("atoms", _count_text([len(atoms) for atoms in systems]) + _fixed_text(systems))
    table.add_row("steps", f"{simulation.step} of {simulation.settings.total_steps}")
    table.add_row("wall time", f"{reporter.seconds:.2f} s for {reporter.steps_done} steps")
    speed = reporter.nanoseconds_per_day
    together = f", {speed * len(systems):.3g} ns/day together" if len(systems) > 1 else ""
    table.add_row("speed", f"{speed:.3g} ns/day{together}")
    if simulation.minimization is not None:
        table.add_row("minimization", _minimization_text(simulation.minimization))
    first = names(outputs.LOG, len(systems))[0]
    for record in read_log(simulation.directory / first):
        table.add_row(f"stage {record.label}", _stage_text(record, len(simulation.atoms)))
    for k, name in enumerate(simulation.inputs):
        table.add_row(f"replica {k}", Text(printable(name)))
    ladder = sorted(simulation.temperatures)
    for k, (attempts, exchanges) in enumerate(simulation.exchanges):
        share = f" ({exchanges / attempts:.0%})" if attempts else ""
        pair = f"exchanges at {ladder[k]:.1f} and {ladder[k + 1]:.1f} K"
        table.add_row(pair, f"{exchanges} of {attempts}{share}")
    present = [path.name for path in outputs_in(simulation.directory)]
    shown = present if len(present) <= 6 else [*present[:2], "...", present[-1]]
    table.add_row(Text(printable(f"files in {simulation.directory}")), ", ".join(shown))
    return table


def _count_text(counts: list[int]) -> str:
    if len(counts) == 1:
        return str(counts[0])
    return f"{len(counts)} systems of {_range_text(counts)}"


def _fixed_text(systems: Sequence[Atoms]) -> str:
    """Return how many atoms are fixed, or nothing if none is."""
    counts = [int(fixed_atoms(atoms).sum()) for atoms in systems]
    return f", {_range_text(counts)} fixed" if any(counts) else ""


def _range_text(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"


def _minimization_text(minimization: Minimization) -> str:
    verdict = "" if minimization.converged else f", not converged to {MAX_FORCE} eV/Å"
    return (
        f"largest force {minimization.max_force:.3f} eV/Å after {minimization.iterations} "
        f"iterations{verdict}"
    )


def _stage_text(record: StageRecord, n_atoms: int) -> str:
    text = f"mean temperature {record.temperature.mean():.1f} K"
    drift = energy_drift(record, n_atoms)
    if drift is not None:
        text += f", energy drift {drift.slope:.2e} ± {drift.error:.1e} eV/atom/ps"
    ratio = unsettled(record)
    if ratio is not None:
        text += (
            f"; not equilibrated, as the potential energy drifts by {ratio:.1f} times its "
            "fluctuation in the last half"
        )
    return text
