"""Costs of a step: linear fits to measured times for each backend, model and device.

Costs are shipped with the package in ``costs.csv``, which `benchmarks.engine.costs` makes from the
committed results (GPU time, without transfers from and to the host). ``mlff-triton calibrate``
measures whole calls on the user's machine and stores them in a file of the same form. They take
precedence over shipped costs.
"""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path

import torch

from mlff_triton._common.cache import folder
from mlff_triton._common.devices import dtype_name
from mlff_triton._common.files import replace_file, reported
from mlff_triton._common.timing import device_name, version_of
from mlff_triton.errors import InputError, OutputError
from mlff_triton.model.config import TensorNet2Config, TensorNetConfig

SHIPPED = Path(__file__).with_suffix(".csv")
DENSITY = 0.1  # atoms per Å^3, as in water


@dataclass(frozen=True)
class Target:
    """Device, model size and software that costs are valid for.

    Attributes
    ----------
    device : str
        Name of the device, see `mlff_triton._common.timing.device_name`.
    architecture : str
        Architecture of the model, see `architecture_of`.
    channels, layers : int
        Size of the model.
    dtype : str
        Precision of the network.
    software : str
        Versions of PyTorch, Triton and this package.
    """

    device: str
    architecture: str
    channels: int
    layers: int
    dtype: str
    software: str

    @classmethod
    def of(cls, config: TensorNetConfig, device: torch.device, dtype: torch.dtype) -> Target:
        """Return the target of a model on a device of this machine, with the installed software."""
        return cls(
            device_name(device),
            architecture_of(config),
            config.hidden_channels,
            config.num_layers,
            dtype_name(dtype),
            software(torch.__version__, version_of("triton"), version_of("mlff-triton")),
        )


def architecture_of(config: TensorNetConfig) -> str:
    """Name the architecture of a model, because the cost of an edge depends on it.

    The edges of a TensorNet2 are the pairs of its Coulomb energy: all, or those within its cutoff.
    """
    if not isinstance(config, TensorNet2Config):
        return "TensorNet"
    kinds = {
        None: "TensorNet2 without Coulomb energy",
        "all-pairs": "TensorNet2",
        "reaction-field": "TensorNet2 with Coulomb cutoff",
        "pme": "TensorNet2 with particle-mesh Ewald",
    }
    return kinds[config.coulomb_method]


def software(torch_version: str, triton: str, package: str) -> str:
    """Join versions into one string."""
    return f"torch {torch_version}, triton {triton}, mlff_triton {package}"


@dataclass(frozen=True)
class Cost:
    """Time of a step of one backend: ``launch + per_atom * atoms + per_edge * edges``.

    Attributes
    ----------
    launch, per_atom, per_edge : float
        ms; not negative.
    misfit : float
        Largest relative error among the times that it was fitted to.
    """

    launch: float
    per_atom: float
    per_edge: float
    misfit: float

    def ms(self, n_atoms: int, n_edges: float) -> float:
        """Return the time of a step in ms."""
        return self.launch + self.per_atom * n_atoms + self.per_edge * n_edges


@dataclass(frozen=True)
class Costs:
    """Costs of all backends measured for one target.

    Attributes
    ----------
    target : Target
        Device, model size and software.
    date : str
        YYYY-MM-DD.
    backends : dict
        `Cost` of each backend.
    """

    target: Target
    date: str
    backends: dict[str, Cost]


TARGET, COST = (tuple(field.name for field in fields(kind)) for kind in (Target, Cost))
COLUMNS = (*TARGET, "date", "backend", *COST)


def typical_edges(n_atoms: int, cutoff: float) -> float:
    """Return the number of directed edges between atoms at the density of water."""
    neighbors = 4 / 3 * math.pi * cutoff**3 * DENSITY
    return n_atoms * min(n_atoms - 1, neighbors)


def known(target: Target) -> Costs | None:
    """Return the user's costs for a target, or shipped ones that may differ in software."""
    for costs in _cached():
        if costs.target == target:
            return costs
    for costs in shipped():
        if replace(costs.target, software=target.software) == target:
            return costs
    return None


def provenance(target: Target) -> str:
    """Describe the origin of the costs for a target, or how to measure them."""
    costs = known(target)
    if costs is not None:
        source = "by mlff-triton calibrate" if costs.target == target else "shipped"
        return f"measured on {target.device}, {costs.date}, {source}: {costs.target.software}"
    others = [
        c.target.device
        for c in shipped()
        if replace(c.target, device=target.device, software=target.software) == target
    ]
    where = f"has been measured on {', '.join(others)}, not" if others else "has not been measured"
    return (
        f"no times: {target.architecture}, F = {target.channels}, layers = {target.layers}, "
        f"{target.dtype} {where} on this {target.device}: run mlff-triton calibrate"
    )


@cache
def shipped() -> tuple[Costs, ...]:
    """Return the costs shipped with the package."""
    return tuple(read(SHIPPED))


def cache_file() -> Path:
    """Return the path that `keep` writes: in ``$MLFF_TRITON_CACHE`` or the user's cache folder."""
    return folder() / "costs.csv"


def keep(costs: Costs, path: Path | None = None) -> Path:
    """Write costs to a file, by default the cache, replacing older ones of the same target."""
    path = path or cache_file()
    with reported(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    others = [old for old in _read_if_sound(path) if old.target != costs.target]
    write(path, [*others, costs])
    return path


def _cached() -> list[Costs]:
    try:
        return _read_if_sound(cache_file())
    except OutputError:  # there is no home folder
        return []


def _read_if_sound(path: Path) -> list[Costs]:
    """Read the costs in a file; warn and return none if it is damaged."""
    try:
        return read(path) if path.exists() else []
    except (OSError, InputError) as error:
        warnings.warn(
            f"{error}; it is ignored: run mlff-triton calibrate to replace it", stacklevel=2
        )
        return []


def read(path: Path) -> list[Costs]:
    """Read the costs in a file.

    Raises
    ------
    InputError
        If the file does not hold costs.
    """
    found: dict[tuple[Target, str], Costs] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
            if tuple(header) != COLUMNS:
                raise ValueError(f"its columns are {header}")
            for row in rows:
                record = dict(zip(COLUMNS, row, strict=True))
                target, date = _target(record), record["date"]
                costs = found.setdefault((target, date), Costs(target, date, {}))
                costs.backends[record["backend"]] = _cost(record)
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path} is not a file of costs ({error})") from error
    return list(found.values())


def _target(record: dict[str, str]) -> Target:
    device, kind, channels, layers, dtype, versions = (record[name] for name in TARGET)
    return Target(device, kind, int(channels), int(layers), dtype, versions)


def _cost(record: dict[str, str]) -> Cost:
    values = [float(record[name]) for name in COST]
    if not all(0 <= value < math.inf for value in values):
        raise ValueError(f"costs cannot be {values}")
    return Cost(*values)


def write(path: Path, costs: Iterable[Costs]) -> None:
    """Replace a file by these costs atomically; raise `OutputError` if that fails."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in costs:
        for backend, cost in one.backends.items():
            values = [f"{value:.4g}" for value in asdict(cost).values()]
            writer.writerow([*asdict(one.target).values(), one.date, backend, *values])
    replace_file(path, text.getvalue().encode())
