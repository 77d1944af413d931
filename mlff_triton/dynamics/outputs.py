"""Output files of a run, which never contain incomplete records.

Trajectories and ``log.csv`` grow by complete records and can be truncated to an earlier length.
Other files are replaced atomically. A thread writes all of them, in order.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from ase import Atoms, units

from mlff_triton._common.files import reported
from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics.lock import LOCK
from mlff_triton.dynamics.settings import Settings
from mlff_triton.dynamics.systems import split
from mlff_triton.dynamics.trajectories import Frame, Recorder, open_trajectory
from mlff_triton.dynamics.trajectories.append_only import AppendOnlyFile
from mlff_triton.engine.motion import Observation
from mlff_triton.errors import OutputError

TRAJECTORY = "trajectory"
LOG = "log.csv"
RESTART = "restart.npz"
SUMMARY = "summary.png"
UNCERTAIN = "uncertain.xyz"
TOPOLOGY = "topology.pdb"


def names(name: str, n_systems: int) -> list[str]:
    """Return the name of a file of each system: numbered, unless there is one system.

    Examples
    --------
    >>> names("log.csv", 2)
    ['log-000.csv', 'log-001.csv']
    """
    if n_systems == 1:
        return [name]
    path = Path(name)
    digits = max(3, len(str(n_systems - 1)))
    return [f"{path.stem}-{k:0{digits}d}{path.suffix}" for k in range(n_systems)]


def trajectory_names(settings: Settings, n_systems: int) -> list[str]:
    """Return the name of each trajectory."""
    return names(f"{TRAJECTORY}.{settings.trajectory}", n_systems)


@dataclass(frozen=True)
class LogRow:
    """One line of ``log.csv``; None becomes an empty field.

    The temperature refers to 3N degrees of freedom of the N atoms that are not fixed. The pressure
    includes the kinetic contribution. The conserved energy is the total energy without heat from
    the thermostat and work of the barostat. Only the integrator changes it: it drifts if the time
    step is too long. For models that know the error of the force on each atom, the last two columns
    are the largest error and the mean.
    """

    step: int
    time_ps: float
    stage: str
    target_K: float  # noqa: N815
    temperature_K: float  # noqa: N815
    potential_eV: float  # noqa: N815
    kinetic_eV: float  # noqa: N815
    total_eV: float  # noqa: N815
    conserved_eV: float  # noqa: N815
    volume_A3: float | None  # noqa: N815
    pressure_bar: float | None
    largest_uncertainty_eV_per_A: float | None = None  # noqa: N815
    mean_uncertainty_eV_per_A: float | None = None  # noqa: N815

    FORMATS = ("d", ".9g", "s", ".4f", ".4f", ".9f", ".9f", ".9f", ".9f", ".6f", ".4f")
    OF_UNCERTAINTY = (".6f", ".6f")

    @classmethod
    def header(cls, *, has_uncertainty: bool = False) -> str:
        """Return the first line of the file."""
        names = [field.name for field in dataclasses.fields(cls)]
        return ",".join(names if has_uncertainty else names[: len(cls.FORMATS)]) + "\n"

    def line(self, *, has_uncertainty: bool = False) -> str:
        """Format the row as a line of the file."""
        formats = self.FORMATS + (self.OF_UNCERTAINTY if has_uncertainty else ())
        texts = (
            "" if value is None else format(value, spec)
            for value, spec in zip(dataclasses.astuple(self), formats, strict=False)
        )
        return ",".join(texts) + "\n"


def observe(
    systems: Sequence[Atoms],
    observation: Observation,
    settings: Settings,
    temperatures: Sequence[float],
) -> list[LogRow]:
    """Compute the log row of each system."""
    state, step = observation.state, observation.state.step
    span = settings.span_of(step)
    velocities, heats = split(state.velocities, systems), split(state.heat, systems)
    known = observation.uncertainty
    errors = None if known is None else split(known, systems)
    rows = []
    for k, atoms in enumerate(systems):
        masses = atoms.get_masses()
        potential = float(observation.energy[k])
        kinetic = float(0.5 * (masses * (velocities[k] ** 2).sum(1)).sum())
        conserved = potential + kinetic - float(heats[k].sum()) - float(state.work[k])
        volume = pressure = None
        if atoms.pbc.all():
            volume = float(abs(np.linalg.det(state.cell[k])))
            pressure = (2 * kinetic - observation.virial[k].trace()) / (3 * volume * units.bar)
            pressure = float(pressure) if np.isfinite(pressure) else None
        rows.append(
            LogRow(
                step=step,
                time_ps=settings.time(step),
                stage=span.label,
                target_K=settings.target(step, temperatures[k]),
                temperature_K=2 * kinetic / (3 * int((~fixed_atoms(atoms)).sum()) * units.kB),
                potential_eV=potential,
                kinetic_eV=kinetic,
                total_eV=potential + kinetic,
                conserved_eV=conserved,
                volume_A3=volume,
                pressure_bar=pressure,
                largest_uncertainty_eV_per_A=None if errors is None else float(errors[k].max()),
                mean_uncertainty_eV_per_A=None if errors is None else float(errors[k].mean()),
            )
        )
    return rows


def frames(
    systems: Sequence[Atoms],
    observation: Observation,
    settings: Settings,
    temperatures: Sequence[float],
) -> list[Frame]:
    """Return the frame of each system, given its atoms in the observed state."""
    step = observation.state.step
    moment = step, settings.time(step), settings.span_of(step).label
    results = observation.energy.tolist(), split(observation.forces, systems)
    found = [
        Frame.of(atoms, *moment, energy, forces)
        for atoms, energy, forces in zip(systems, *results, strict=True)
    ]
    for frame, temperature in zip(found, temperatures, strict=True):
        frame.info["target_K"] = settings.target(step, temperature)
    if observation.uncertainty is None:
        return found
    known = split(observation.uncertainty, systems)
    return [replace(frame, uncertainty=own.copy()) for frame, own in zip(found, known, strict=True)]


class Records:
    """Logs and trajectories of all systems of a run. All are checked before `cut` modifies any.

    Parameters
    ----------
    directory : Path
        Directory of the run.
    settings : Settings
        Settings of the run.
    n_systems : int
        Number of systems.
    sizes : dict of int
        Bytes to keep of each file, by name.
    has_uncertainty : bool
        True if the logs of a new run have columns of the uncertainty. Logs of other runs keep their
        columns.

    Raises
    ------
    OutputError
        If a file is missing or shorter than it must be, or cannot be read.
    """

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        n_systems: int,
        sizes: dict[str, int],
        has_uncertainty: bool = False,
    ) -> None:
        self._files = [
            open_trajectory(
                directory / name,
                timestep_ps=settings.timestep / 1000,
                interval=settings.every,
                size=sizes.get(name, 0),
            )
            for name in trajectory_names(settings, n_systems)
        ]
        self._logs = [
            AppendOnlyFile(directory / name, sizes.get(name, 0)) for name in names(LOG, n_systems)
        ]
        first = self._logs[0]
        if first.size:
            with first.path.open("rb") as file:
                has_uncertainty = b"uncertainty" in file.readline()
        self._has_uncertainty = has_uncertainty
        self._recorder = Recorder(self._files)
        self._lasting = self.sizes

    def cut(self) -> None:
        """Remove the rest of each file after the bytes to keep."""
        for trajectory in self._files:
            trajectory.cut()
        for log in self._logs:
            log.cut()

    def log(self, rows: Sequence[LogRow] | None = None, *, is_lasting: bool = True) -> None:
        """Append a row to each log; the header by default.

        Parameters
        ----------
        rows : sequence of LogRow, optional
            The rows.
        is_lasting : bool
            True if a longer run has them, too.
        """
        has = self._has_uncertainty
        lines = [LogRow.header(has_uncertainty=has)] * len(self._logs)
        if rows is not None:
            lines = [row.line(has_uncertainty=has) for row in rows]

        def write(_: tuple[int, ...]) -> None:
            for file, line in zip(self._logs, lines, strict=True):
                file.append(line.encode())
                if is_lasting:
                    self._lasting[file.path.name] = file.size

        self._recorder.call(write)

    def add(self, frames: Sequence[Frame], *, is_lasting: bool = True) -> None:
        """Append a frame to each trajectory; arguments are as in `log`."""
        for k, frame in enumerate(frames):
            self._recorder.append(frame, k)

        def note(sizes: tuple[int, ...]) -> None:
            names = (file.path.name for file in self._files)
            self._lasting |= zip(names, sizes, strict=True)

        if is_lasting:
            self._recorder.call(note)

    def call(self, action: Callable[[dict[str, int], dict[str, int]], None]) -> None:
        """Call a function once everything is written.

        Its arguments are the sizes of all files, in bytes by name, with and without temporary
        records.
        """
        self._recorder.call(lambda _: action(self.sizes, dict(self._lasting)))

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each file in bytes, by name."""
        sizes = {file.path.name: file.size for file in self._files}
        return sizes | {file.path.name: file.size for file in self._logs}

    def flush(self) -> None:
        """Wait until everything is written, and raise errors."""
        self._recorder.flush()


def check_directory(directory: Path, overwrite: bool) -> None:
    """Raise an `OutputError` if new results must not go to a directory; modify nothing."""
    if directory.exists() and not directory.is_dir():
        raise OutputError(f"{directory} is a file: choose another --out")
    with reported(directory):
        present = {path.name for path in directory.iterdir()} if directory.exists() else set()
    if present - {LOCK} and not overwrite:
        hint = f", or continue its run by md --restart {directory / RESTART}" * (RESTART in present)
        raise OutputError(
            f"{directory} is not empty: choose another --out, or use --overwrite{hint}"
        )


OUTPUTS = (TRAJECTORY, "log", "restart", "summary", "topology", "uncertain")


def outputs_in(directory: Path) -> list[Path]:
    """Return the output files of a run, of all replicas."""
    return sorted(
        path
        for stem in OUTPUTS
        for path in directory.glob(f"{stem}*.*")
        if re.fullmatch(rf"{stem}(-\d+)?\.(xyz|dcd|xtc|csv|npz|png|pdb)", path.name)
    )


def clear_directory(directory: Path) -> None:
    """Remove the outputs of an earlier run from a directory, but no other files."""
    with reported(directory):
        for path in outputs_in(directory):
            path.unlink()
