"""Docking of all ligands in a file to a receptor, resumably."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mlff_triton._common.files import fingerprint, path_of
from mlff_triton._common.text import first_line
from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton._common.version import __version__
from mlff_triton.bio.docking.ligands import Record, failed, molecule_of, tasks_of, written
from mlff_triton.bio.docking.package import (
    CONFIGURATION,
    Loaded,
    Package,
    check_installed,
    diffusion_of,
    find_code,
    find_models,
)
from mlff_triton.bio.docking.screening import Judge, Poses, dock
from mlff_triton.bio.patch import accelerate
from mlff_triton.errors import InputError, UnsupportedModelError
from mlff_triton.jobs.job import Job, Progress, Workers, run
from mlff_triton.jobs.workers import Done


class LigandWarning(UserWarning):
    """A ligand has no poses; the message says why."""


def dock_files(
    receptor: str | Path,
    ligands: str | Path,
    out: str | Path,
    *,
    model: str | Path,
    confidence: str | Path | None = None,
    code: str | Path | None = None,
    configuration: str | Path | None = None,
    samples: int = 10,
    steps: int | None = None,
    seed: int = 0,
    batch: int = 32,
    device: str = "auto",
    workers: int | None = None,
    scheduler: str | None = None,
    overwrite: bool = False,
    show: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Dock all ligands of an SDF file to a receptor by DiffDock.

    DiffDock's own code makes the graphs and must be available. Poses follow each other in the order
    of the input, best first, with the properties ``record`` (number of the ligand), ``rank`` and
    ``confidence``. A ligand that cannot be read or docked is a record without atoms and with the
    property ``error``. If a call is interrupted, even by SIGKILL, an equal call continues it.

    Parameters
    ----------
    receptor : str or path
        PDB file.
    ligands : str or path
        SDF file, gzipped or not. Their positions are not used.
    out : str or path
        SDF file to write. It appears when it is complete.
    model : str or path
        Folder of a score model of DiffDock, or one with ``score_model`` and ``confidence_model``.
    confidence : str or path, optional
        Folder of the confidence model that ranks poses.
    code : str or path, optional
        Folder of DiffDock's code; by default, the one in the environment variable DIFFDOCK.
    configuration : str or path, optional
        Settings of DiffDock's ``inference.py``; by default ``default_inference_args.yaml`` in the
        folder of the code, if there is one.
    samples : int
        Poses of each ligand.
    steps : int, optional
        Steps of the diffusion; by default those of the configuration, or 20.
    seed : int
        Seed of all random numbers. The random numbers of a ligand depend on it and on the ligand's
        number.
    batch : int
        Ligands in a batch.
    device, workers, scheduler, overwrite, show, stop
        As for `mlff_triton.bio.embed_files`.

    Returns
    -------
    Progress
        Numbers of ligands and errors, and whether the output is complete.

    Raises
    ------
    InputError
        If an option is invalid, a file cannot be read, or a package is missing.
    CheckpointError
        If a model cannot be loaded.
    BackendError
        If the device or the scheduler is unavailable, or workers die repeatedly.
    OutputError
        If the output exists or cannot be written, or was begun with other options or input.

    Examples
    --------
    >>> dock_files("receptor.pdb", "ligands.sdf", "poses.sdf", model="workdir/v1.1")
    """
    _check_numbers(samples, batch, steps, seed)
    target, source = _existing(receptor), _existing(ligands)
    folder = find_code(None if code is None else path_of(code))
    models = find_models(path_of(model), None if confidence is None else path_of(confidence))
    chosen = _configuration(configuration, folder)
    check_installed()
    work = Docking(target.absolute(), folder, *models, chosen, samples, steps, seed)
    job = Job(lambda: tasks_of(source, batch), work, path_of(out), work.settings(batch))
    place = Workers(device, workers, scheduler)
    return run(job, place, overwrite=overwrite, show=show, stop=stop)


def _check_numbers(samples: int, batch: int, steps: int | None, seed: int) -> None:
    if samples < 1 or batch < 1 or (steps is not None and steps < 1):
        raise InputError("samples, steps and batch must be at least 1")
    if not 0 <= seed < 2**63:
        raise InputError(f"seed={seed} is not valid: use 0 to {2**63 - 1}")


def _existing(file: str | Path) -> Path:
    path = path_of(file)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    return path


def _configuration(given: str | Path | None, code: Path) -> Path | None:
    """Return the file with settings of docking: the given one, or the code's own, if any."""
    if given is not None:
        return path_of(given).absolute()
    own = code / CONFIGURATION
    return own.absolute() if own.is_file() else None


def _check_of(path: Path | None) -> int | None:
    """Return the CRC-32 of a file, or None if there is none."""
    if path is None:
        return None
    try:
        return zlib.crc32(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}") from error


@dataclass(frozen=True)
class Docking:
    """The computation of `dock_files`; its attributes are arguments of that function."""

    receptor: Path
    code: Path
    model: Path
    confidence: Path | None
    configuration: Path | None
    samples: int
    steps: int | None
    seed: int

    def settings(self, batch: int) -> dict[str, str | int | float | bool | None]:
        """Return everything that results depend on, which is the same for equal calls."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "job": "dock",
            "version": __version__,
            "receptor contents": _check_of(self.receptor),
            "configuration contents": _check_of(self.configuration),
            "model files": fingerprint(self.model),
            "confidence files": None if self.confidence is None else fingerprint(self.confidence),
            "batch": batch,
            **{key: str(value) if isinstance(value, Path) else value for key, value in own.items()},
        }

    def start(self, device: str) -> Callable[[list[Record]], Done]:
        """Load what docking needs, and return the function that docks the ligands of records."""
        return Docker(self, torch.device(device)).docked

    def nothing(self) -> list[Record]:
        """Return no records."""
        return []

    def parts(self, records: list[Record]) -> list[list[Record]]:
        """Return two halves of a list of records, or the list itself if it has one record."""
        middle = len(records) // 2
        return [records[:middle], records[middle:]] if middle else [records]

    def lost(self, records: list[Record], reason: str) -> Done:
        """Return an error for each record."""
        return done_of(records, [reason] * len(records))

    def merged(self, payloads: Sequence[bytes]) -> bytes:
        """Join the results of parts into the results of their task."""
        return b"".join(payloads)


def done_of(records: Sequence[Record], results: Sequence[bytes | str]) -> Done:
    """Return the poses of ligands, or errors as texts, as results of a task."""
    payload, lines = [], []
    for record, result in zip(records, results, strict=True):
        if isinstance(result, bytes):
            payload.append(result)
            continue
        payload.append(failed(record, result))
        lines.append(f"ligand {record.number} ({record.name}): {result}")
        warnings.warn(lines[-1], LigandWarning, stacklevel=2)
    return Done(b"".join(payload), len(records), len(lines), lines[0] if lines else "")


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, or the first line of its error."""
    try:
        return function(*arguments)
    except InputError as error:
        return first_line(error)


def reason_of(error: Exception) -> str:
    """Return the first line of an error, or its class if it says nothing."""
    return first_line(error) or type(error).__name__


class Ligand(NamedTuple):
    """A ligand that can be docked.

    Attributes
    ----------
    record : Record
        Its record in the file.
    molecule : rdkit.Chem.Mol
        Its molecule.
    graph, judged : HeteroData
        Its complexes with the receptor for the score model, and for the confidence model if there
        is one.
    """

    record: Record
    molecule: Any
    graph: Any
    judged: Any


class Docker:
    """Models and a receptor on a device.

    Parameters
    ----------
    work : Docking
        Settings.
    device : torch.device
        Device.

    Raises
    ------
    InputError, CheckpointError
        If something is missing, or cannot be read.
    """

    @with_own_settings
    def __init__(self, work: Docking, device: torch.device) -> None:
        self.work, self.package = work, Package(work.code)
        self.scores = self.package.load(work.model, device)
        self.diffusion = diffusion_of(self.scores, work.configuration, work.steps)
        self.receptor, embeddings = self.package.receptor(work.receptor, self.scores)
        self.judge: Loaded | None = None
        self.judged = self.receptor
        if work.confidence is not None:
            self.judge = self.package.load(work.confidence, device, confidence=True)
            if not self.judge.get("use_original_model_cache", False):
                self.judged, _ = self.package.receptor(work.receptor, self.judge, embeddings)
        for loaded in (self.scores, self.judge):
            if loaded is not None and device.type == "cuda":
                try:
                    accelerate(loaded.model)
                except UnsupportedModelError as error:
                    warnings.warn(f"not accelerated: {first_line(error)}", stacklevel=2)

    def docked(self, records: list[Record]) -> Done:
        """Dock the ligands of records."""
        given = [attempt(self._ligand, record) for record in records]
        ligands = [each for each in given if isinstance(each, Ligand)]
        found = iter(self._docked(ligands))
        return done_of(records, [next(found) if isinstance(x, Ligand) else x for x in given])

    @with_own_settings
    def _ligand(self, record: Record) -> Ligand:
        """Return a ligand with its graphs.

        Raises
        ------
        InputError
            If RDKit or DiffDock cannot read it.
        """
        molecule = molecule_of(record, self._seed(record))
        try:
            graph = self.package.complex(molecule, self.receptor, self.scores)
            judged = None
            if self.judge is not None:
                judged = self.package.complex(molecule, self.judged, self.judge)
        except Exception as error:
            raise InputError(reason_of(error)) from error
        return Ligand(record, molecule, graph, judged)

    def _docked(self, ligands: list[Ligand]) -> list[bytes | str]:
        """Return the poses of ligands; if a batch fails, compute its ligands one by one."""
        try:
            found = self._poses(ligands)
        except Exception as error:  # noqa: BLE001 - the package raises many kinds
            if len(ligands) == 1:
                return [reason_of(error)]
            return [result for each in ligands for result in self._docked([each])]
        center = self.receptor.original_center.cpu().numpy()
        write = partial(written, center=center, heavy=self.scores.settings.remove_hs)
        return [
            attempt(write, each.record, each.molecule, poses)
            for each, poses in zip(ligands, found, strict=True)
        ]

    @with_own_settings
    def _poses(self, ligands: list[Ligand]) -> list[Poses]:
        """Return the poses of ligands."""
        judge = None
        if self.judge is not None:
            judged = [each.judged for each in ligands]
            judge = Judge(self.judge.model, judged, self.judge.get("crop_beyond"))
        return dock(
            self.scores.model,
            [each.graph for each in ligands],
            self.diffusion,
            samples=self.work.samples,
            seeds=[self._seed(each.record) for each in ligands],
            judge=judge,
            poses=max(1, len(ligands)) * self.work.samples,
        )

    def _seed(self, record: Record) -> int:
        """Return the seed of a ligand."""
        state = np.random.SeedSequence([self.work.seed, record.number]).generate_state(2)
        return int(state[0]) << 31 | int(state[1]) >> 1
