"""Energies, forces and stresses of any number of structures, from files to a file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols
from numpy.typing import NDArray

from mlff_triton._common.devices import dtype_name, find_dtype
from mlff_triton._common.files import path_of
from mlff_triton._common.text import printable
from mlff_triton._common.torch_settings import using_threads
from mlff_triton._common.version import __version__
from mlff_triton.calculators import TensorNetCalculator
from mlff_triton.calculators._screening import NO_REMARKS, UNKNOWN, Remarks, Screening
from mlff_triton.calculators._total_charge import CHARGE, noted_charge
from mlff_triton.checkpoints import lasting_name, load_model
from mlff_triton.checkpoints.dispersion import warn_of_dispersion
from mlff_triton.dispersion.damping import damping_of
from mlff_triton.dynamics.structures import checked
from mlff_triton.dynamics.trajectories.comment import to_json
from mlff_triton.errors import DispersionWarning, MlffTritonError
from mlff_triton.jobs.job import WARNINGS, Job, Progress, Workers, run
from mlff_triton.jobs.tables import OF_ITEMS, concatenated, pack, writer_of
from mlff_triton.jobs.workers import Done, workers_for
from mlff_triton.model.prediction import Ensemble, members_of
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.statics.inputs import XYZ, Piece, find_files, tasks_of, total_size, without_output
from mlff_triton.statics.result_text import Shown, text_of
from mlff_triton.statics.single_points import plain_charge, plain_info

ERROR = "error"  # name of the message of a structure that has no results
COUNTS = "n_atoms"


def predict_files(
    structures: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    model: str | Path = "default",
    coulomb: str | None = None,
    charge: int | None = None,
    periodic: bool = True,
    dtype: str | torch.dtype = "float32",
    dispersion: str | None = None,
    device: str = "auto",
    workers: int | None = None,
    scheduler: str | None = None,
    overwrite: bool = False,
    show: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Compute energies, forces and stresses of all structures in files.

    Files may be of any number and size; a few thousand structures are in memory at a time. Results
    have the order of the input. A structure that cannot be read or computed has an error instead of
    results, and does not stop the others. If a call is interrupted, even by SIGKILL, an equal call
    continues it: no result is lost or computed into the output twice.

    Parameters
    ----------
    structures : str, path, or iterable of them
        Files that ASE reads, folders of such files, or names of shipped structures. XYZ
        files may be compressed by gzip, bzip2 or xz.
    out : str or path
        File to write: extended XYZ (.xyz, .extxyz), Parquet (.parquet, .pq) or HDF5 (.h5, .hdf5).
        It appears when it is complete. Until then, files that begin with its name lie beside it.
    model : str or path
        Name of a shipped model, or a checkpoint.
    coulomb : {"all-pairs", "reaction-field", "pme"}, optional
        Coulomb energy of a model with partial charges; by default, the model's own.
    charge : int, optional
        Total charge; by default, the charge of each structure, or 0.
    periodic : bool
        If False, drop the cells.
    dtype : {"float32", "float64"} or torch.dtype
        Precision of the network.
    dispersion : str, optional
        Correction to add, as for `mlff_triton.calculators.TensorNetCalculator`.
    device : str
        "auto" (all GPUs of this machine, if there are any), "cpu", "cuda:1", "cuda:0,cuda:1"...
    workers : int, optional
        Number of processes that share the GPUs; by default, one per GPU, or only this process if
        there is at most one GPU. For more than 32 MB per GPU, up to eight processes share each GPU:
        one for each 16 MB, if there are as many cores and 8 GB of the GPU's memory for each. If a
        process dies, only the structure that killed it is lost.
    scheduler : str, optional
        Address of a Dask scheduler, or the file that it has written. Its workers compute. They must
        find the model and the structures by the same paths.
    overwrite : bool
        If True, replace an output that exists.
    show : callable
        Called with a `Progress` now and then.
    stop : callable
        Function that returns True to stop soon.

    Returns
    -------
    Progress
        Numbers of results and errors, and whether the output is complete.

    Raises
    ------
    InputError
        If an option is invalid, a file is missing, or an XYZ file is damaged so that frames cannot
        be told apart.
    CheckpointError
        If the model cannot be loaded.
    BackendError
        If the device or the scheduler is unavailable, or workers die repeatedly.
    OutputError
        If the output exists or cannot be written, or was begun with other options or input.

    Examples
    --------
    >>> predict_files("alanine-dipeptide-water", "results.xyz").items
    1
    """
    path = path_of(out)
    files = without_output(find_files(structures), path)
    finish = None if path.suffix.lower() in XYZ else writer_of(path, COUNTS, XYZ)
    precision = dtype_name(find_dtype(dtype))
    method = None if dispersion is None else damping_of(dispersion).method
    loaded = load_model(model, coulomb=coulomb)
    if method is not None:
        warn_of_dispersion(model, method)
    options = lasting_name(model), precision, coulomb, method, charge, periodic, finish is None
    work = SinglePoints(*options, *_results_of(loaded))
    job = Job(lambda: tasks_of(files), work, path, work.settings(loaded), finish=finish)
    if workers is None and scheduler is None:
        workers = workers_for(device, total_size(files))
    place = Workers(device, workers, scheduler)
    return run(job, place, overwrite=overwrite, show=show, stop=stop)


def _results_of(model: TensorNet | Ensemble) -> tuple[bool, bool, bool]:
    """Return True for each of a record of known structures, charges and uncertainties it has."""
    has_record = model.known_domain is not None or model.uncertainty_limit is not None
    return has_record, model.has_charges, model.has_uncertainty


@dataclass
class Row:
    """A structure and its results, or an error.

    Attributes
    ----------
    source : str
        File.
    frame : int
        Number of the structure in it, from 0.
    atoms : Atoms
        The structure; empty if it could not be read.
    results : dict or None
        Results in the form of ASE's calculators.
    error : str
        Reason why there are no results.
    remarks : Remarks
        Doubts about the structure.
    """

    source: str
    frame: int
    atoms: Atoms
    results: dict[str, Any] | None = None
    error: str = ""
    remarks: Remarks = NO_REMARKS

    @property
    def name(self) -> str:
        """File and frame."""
        return printable(f"{self.source}, frame {self.frame}")

    def __str__(self) -> str:
        return printable(f"{self.name}: {self.error}")


@dataclass(frozen=True)
class SinglePoints:
    """The computation of `predict_files`; attributes are arguments, or properties of the output."""

    model: str
    dtype: str
    coulomb: str | None
    dispersion: str | None
    charge: int | None
    periodic: bool
    is_xyz: bool
    has_record: bool
    has_charges: bool
    has_uncertainty: bool

    def settings(self, model: TensorNet | Ensemble) -> dict[str, str | int | None]:
        """Return everything that results depend on, which is the same for equal calls."""
        settings = {
            "job": "predict",
            "version": __version__,
            "weights": "-".join(member.weights_hash for member in members_of(model)),
            "dtype": self.dtype,
            "charge": self.charge,
            "periodic": self.periodic,
        }
        optional = {"dispersion": self.dispersion, "coulomb": self.coulomb}
        return settings | {key: value for key, value in optional.items() if value is not None}

    def start(self, device: str) -> Callable[[list[Piece]], Done]:
        """Load the model, and return the function that computes pieces of the input."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DispersionWarning)  # given by `predict_files`
            calculator = TensorNetCalculator(
                self.model,
                device=device,
                dtype=self.dtype,
                coulomb=self.coulomb,
                dispersion=self.dispersion,
            )
        screening = Screening(calculator.session, judges=True)

        def compute(pieces: list[Piece]) -> Done:
            parsed = chain.from_iterable(piece.parse() for piece in pieces)
            rows = [self._row(*found) for found in parsed]
            with using_threads(1):  # several would wait for one another at every small tensor
                _screen([row for row in rows if not row.error], screening)
            good = [row for row in rows if not row.error]
            evaluate(sorted(good, key=lambda row: len(row.atoms)), calculator)
            for row in good:
                row.remarks = screening.judge(row.atoms, row.results or {}, row.remarks)
            return self._done(rows)

        return compute

    def nothing(self) -> list[Piece]:
        """Return no pieces."""
        return []

    def parts(self, pieces: list[Piece]) -> list[list[Piece]]:
        """Return two halves of some pieces or of one piece; a single structure stays whole."""
        middle = len(pieces) // 2
        if middle:
            return [pieces[:middle], pieces[middle:]]
        return [[half] for half in pieces[0].halves()]

    def lost(self, pieces: list[Piece], reason: str) -> Done:
        """Return an error for each of some pieces."""
        return self._done([Row(p.source, p.first, Atoms(), error=reason) for p in pieces])

    def merged(self, payloads: Sequence[bytes]) -> bytes:
        """Join the results of parts into the results of their task."""
        return b"".join(payloads) if self.is_xyz else concatenated(payloads)

    def _done(self, rows: list[Row]) -> Done:
        if not rows:
            return Done(b"", 0)
        if self.is_xyz:
            payload = xyz_of(rows)
        else:
            has = self.has_charges, self.has_uncertainty
            payload = pack(columns_of(rows, self.has_record, *has))
        errors = [row for row in rows if row.error]
        first = str(errors[0]) if errors else ""
        return Done(payload, len(rows), len(errors), first, unknown=_warn(rows))

    def _row(self, source: str, frame: int, image: Atoms | str) -> Row:
        """Return a row without results; one with an error if the structure is invalid."""
        if isinstance(image, str):
            return Row(source, frame, Atoms(), error=image)
        info = plain_info(image.info)
        given = noted_charge(image) if self.charge is None else {CHARGE: self.charge}
        name = f"{source}, frame {frame}"
        try:
            atoms = checked(image, name, self.periodic)
            info |= plain_charge(given)
        except MlffTritonError as error:
            kept = Atoms(image.numbers, image.positions, cell=image.cell, pbc=image.pbc, info=info)
            return Row(source, frame, kept, error=_line(error).removeprefix(f"{name}: "))
        atoms.info = info
        return Row(source, frame, atoms)


def _screen(rows: list[Row], screening: Screening) -> None:
    """Add remarks to rows, or errors."""
    for row, found in zip(rows, screening.look_at_many([r.atoms for r in rows]), strict=True):
        if isinstance(found, MlffTritonError):
            row.error = _line(found)
        else:
            row.remarks = found


def evaluate(rows: list[Row], calculator: TensorNetCalculator) -> None:
    """Add results to rows, in batches of similar sizes; find the rows that fail by halving."""
    if not rows:
        return
    try:
        found = calculator.calculate_many([row.atoms for row in rows])
    except MlffTritonError as error:
        if len(rows) == 1:
            rows[0].error = _line(error)
            return
        half = len(rows) // 2
        evaluate(rows[:half], calculator)
        evaluate(rows[half:], calculator)
        return
    for row, results in zip(rows, found, strict=True):
        if np.isfinite(results["energy"]) and np.isfinite(results["forces"]).all():
            row.results = results
        else:
            row.error = "the model's energy or forces are not finite: check the structure"


def _warn(rows: list[Row]) -> int:
    """Warn about some results, and return the number of those outside the training set."""
    doubtful = [row for row in rows if any(row.remarks) and not row.error]
    for row in doubtful[:WARNINGS]:
        row.remarks.warn(row.name)
    return sum(bool(row.remarks.chemistry) for row in doubtful)


def xyz_of(rows: list[Row]) -> bytes:
    """Return rows as extended XYZ; errors are in the comment."""
    frames = []
    for row in rows:
        if row.results is None:
            numbers = row.atoms.numbers
            numbers[(numbers < 0) | (numbers >= len(chemical_symbols))] = 0  # which ASE calls X
        own = {ERROR: row.error or None, UNKNOWN: row.remarks.chemistry or None}
        frames.append(Shown(row.atoms, row.results or {}, own))
    return text_of(frames)


def columns_of(
    rows: list[Row], has_record: bool, has_charges: bool, has_uncertainty: bool
) -> dict[str, NDArray[Any]]:
    """Return rows as the columns of a table. Missing values are NaN, or empty.

    Unknown chemistry is a column if the model has a record of its training set or a limit of its
    uncertainty. Partial charges and dipoles are columns if it has charges, and so is uncertainty.
    """
    results = [row.results or {} for row in rows]
    nothing = {"energy": np.nan, "stress": np.full(6, np.nan)}
    if has_charges:
        nothing["dipole"] = np.full(3, np.nan)
    atoms = [row.atoms for row in rows]
    of_systems = {
        "source": np.array([printable(row.source) for row in rows], dtype=str),
        "frame": np.array([row.frame for row in rows], dtype=np.int64),
        COUNTS: np.array([len(a) for a in atoms], dtype=np.int64),
        "cell": np.array([a.cell.array for a in atoms]).reshape(-1, 3, 3),
        "pbc": np.array([a.pbc for a in atoms]).reshape(-1, 3),
        "info": np.array([to_json(a.info) if a.info else "" for a in atoms], dtype=str),
        ERROR: np.array([row.error for row in rows], dtype=str),
    }
    if has_record:
        of_systems[UNKNOWN] = np.array([row.remarks.chemistry for row in rows], dtype=str)
    for name, value in nothing.items():
        of_systems[name] = np.array([found.get(name, value) for found in results], dtype=np.float64)
    shapes: dict[str, tuple[int, ...]] = {"forces": (3,)}
    shapes |= {"charges": ()} if has_charges else {}
    shapes |= {"uncertainty": ()} if has_uncertainty else {}
    of_atoms = {
        "numbers": np.concatenate([a.numbers for a in atoms]).astype(np.int64),
        "positions": np.concatenate([a.positions for a in atoms]),
    }
    for name, shape in shapes.items():
        values = (
            found[name] if found else np.full((len(a), *shape), np.nan)
            for found, a in zip(results, atoms, strict=True)
        )
        of_atoms[name] = np.concatenate(list(values))
    return of_systems | {name + OF_ITEMS: values for name, values in of_atoms.items()}


def _line(error: Exception) -> str:
    """Return the message of an error as one line."""
    return printable(" ".join(str(error).split()))
