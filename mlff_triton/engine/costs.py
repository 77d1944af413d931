"""What a step costs: a line through measured times, for each backend, model and device.

Costs come with the package (``costs.csv``, which `benchmarks.engine.costs` makes from the committed
results: GPU time, without the way to the host and back) or from ``mlff-triton calibrate``, which
keeps those of the machine at hand (whole calls) in a file of the same form. A machine's own win.
"""

from __future__ import annotations

import csv
import io
import math
import os
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path

import torch

from mlff_triton._common.files import replace_file, reported
from mlff_triton._common.timing import device_name, version_of
from mlff_triton.errors import InputError
from mlff_triton.model.config import TensorNetConfig

CACHE = "MLFF_TRITON_CACHE"  # folder of what `calibrate` measures; by default that of the user
SHIPPED = Path(__file__).with_suffix(".csv")
DENSITY = 0.1  # atoms in Å^3, as in water


@dataclass(frozen=True)
class Place:
    """What costs hold for.

    Attributes
    ----------
    device : str
        See `mlff_triton._common.timing.device_name`.
    channels, layers : int
        Shape of the model.
    dtype : str
        Of the network.
    software : str
        Versions of PyTorch, Triton and this package.
    """

    device: str
    channels: int
    layers: int
    dtype: str
    software: str

    @classmethod
    def of(cls, config: TensorNetConfig, device: torch.device, dtype: torch.dtype) -> Place:
        """A model on a device of this machine, with the software that is installed."""
        return cls(
            device_name(device),
            config.hidden_channels,
            config.num_layers,
            str(dtype).removeprefix("torch."),
            software(torch.__version__, version_of("triton"), version_of("mlff-triton")),
        )


def software(torch_version: str, triton: str, package: str) -> str:
    """Versions as one text."""
    return f"torch {torch_version}, triton {triton}, mlff_triton {package}"


@dataclass(frozen=True)
class Cost:
    """Time of a step of one backend: ``launch + per_atom * atoms + per_edge * edges``.

    Attributes
    ----------
    launch, per_atom, per_edge : float
        ms; none is negative.
    misfit : float
        Largest relative error among the times that it was fitted to.
    """

    launch: float
    per_atom: float
    per_edge: float
    misfit: float

    def ms(self, n_atoms: int, n_edges: float) -> float:
        """Time of a step, ms."""
        return self.launch + self.per_atom * n_atoms + self.per_edge * n_edges


@dataclass(frozen=True)
class Costs:
    """Costs of backends that were measured at one place.

    Attributes
    ----------
    place : Place
        Where, and with what.
    date : str
        YYYY-MM-DD.
    backends : dict
        Name to `Cost`.
    """

    place: Place
    date: str
    backends: dict[str, Cost]


PLACE, COST = (tuple(field.name for field in fields(kind)) for kind in (Place, Cost))
COLUMNS = (*PLACE, "date", "backend", *COST)


def typical_edges(n_atoms: int, cutoff: float) -> float:
    """Directed edges of so many atoms at the density of water."""
    neighbors = 4 / 3 * math.pi * cutoff**3 * DENSITY
    return n_atoms * min(n_atoms - 1, neighbors)


def known(place: Place) -> Costs | None:
    """Costs of this very place, or else shipped ones of the same device, model and dtype."""
    for costs in _cached():
        if costs.place == place:
            return costs
    for costs in shipped():
        if replace(costs.place, software=place.software) == place:
            return costs
    return None


def provenance(place: Place) -> str:
    """Where the costs of a place come from; if there are none, what to do."""
    costs = known(place)
    if costs is not None:
        source = "by mlff-triton calibrate" if costs.place == place else "shipped"
        return f"measured on {place.device}, {costs.date}, {source}: {costs.place.software}"
    others = [
        c.place.device
        for c in shipped()
        if replace(c.place, device=place.device, software=place.software) == place
    ]
    where = f"has been measured on {', '.join(others)}, not" if others else "has not been measured"
    return (
        f"no times: F = {place.channels}, layers = {place.layers}, {place.dtype} {where} on this "
        f"{place.device}: run mlff-triton calibrate"
    )


@cache
def shipped() -> tuple[Costs, ...]:
    """Costs that come with the package."""
    return tuple(read(SHIPPED))


def cache_file() -> Path:
    """Where `keep` writes: in ``$MLFF_TRITON_CACHE``, or in the user's folder for caches."""
    if CACHE in os.environ:
        return Path(os.environ[CACHE]) / "costs.csv"
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"  # as PyTorch has it
    return Path(caches) / "mlff_triton" / "costs.csv"


def keep(costs: Costs, path: Path | None = None) -> Path:
    """Write costs to a file, by default the cache, in place of older ones of the same place."""
    path = path or cache_file()
    with reported(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    others = [old for old in _read_if_sound(path) if old.place != costs.place]
    write(path, [*others, costs])
    return path


def _cached() -> list[Costs]:
    return _read_if_sound(cache_file())


def _read_if_sound(path: Path) -> list[Costs]:
    """Costs of a file; none, and a warning, if it is damaged."""
    try:
        return read(path) if path.exists() else []
    except (OSError, InputError) as error:
        warnings.warn(
            f"{error}; it is ignored: run mlff-triton calibrate to replace it", stacklevel=2
        )
        return []


def read(path: Path) -> list[Costs]:
    """Costs of a file.

    Raises
    ------
    InputError
        If it is no file of costs.
    """
    found: dict[tuple[Place, str], Costs] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
            if tuple(header) != COLUMNS:
                raise ValueError(f"its columns are {header}")
            for row in rows:
                record = dict(zip(COLUMNS, row, strict=True))
                place, cost = _place(record), _cost(record)
                costs = found.setdefault((place, record["date"]), Costs(place, record["date"], {}))
                costs.backends[record["backend"]] = cost
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} is no file of costs ({error})") from error
    return list(found.values())


def _place(record: dict[str, str]) -> Place:
    device, channels, layers, dtype, versions = (record[name] for name in PLACE)
    return Place(device, int(channels), int(layers), dtype, versions)


def _cost(record: dict[str, str]) -> Cost:
    numbers = [float(record[name]) for name in COST]
    if not all(0 <= number < math.inf for number in numbers):
        raise ValueError(f"there are no costs of {numbers}")
    return Cost(*numbers)


def write(path: Path, costs: Iterable[Costs]) -> None:
    """Replace a file by these costs, at once; an `OutputError` if that fails."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in costs:
        for backend, cost in one.backends.items():
            numbers = [f"{value:.4g}" for value in asdict(cost).values()]
            writer.writerow([*asdict(one.place).values(), one.date, backend, *numbers])
    replace_file(path, text.getvalue().encode())
