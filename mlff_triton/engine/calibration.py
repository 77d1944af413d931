"""Measurement of a model's step times, and the costs that fit them best."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from scipy.optimize import nnls

from mlff_triton._common.timing import measure
from mlff_triton.engine.batch import Batch
from mlff_triton.engine.costs import DENSITY, Cost, typical_edges
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import BackendError
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.neighbor_list import neighbor_list

EXACT_EDGES = 20_000_000  # listing them takes the host seconds
SIZES = {"cpu": (16, 64, 256, 1024), "cuda": (16, 64, 256, 1024, 4096, 16384)}


@dataclass(frozen=True)
class Point:
    """A measured step.

    Attributes
    ----------
    backend : str
        Backend that computed it.
    atoms, edges : int
        Number of atoms, and of directed edges within the model's cutoff.
    ms : float
        Median time in ms.
    """

    backend: str
    atoms: int
    edges: int
    ms: float


def step_time(engine: Engine, batch: Batch, seconds: float = 0.5) -> float:
    """Measure the median time of a call in ms, repeated for about the given time."""
    return measure(
        lambda: engine.evaluate(batch),
        engine.device,
        seconds=seconds,
        warm_up=2,
        repeats=(3, 200),
        wall=True,
    ).p50


def measure_backend(
    model: TensorNet,
    device: torch.device,
    dtype: str,
    backend: str,
    *,
    sizes: Sequence[int] | None = None,
    slow: float = 250.0,
    time: Callable[[Engine, Batch], float] = step_time,
) -> Iterator[Point]:
    """Measure larger and larger systems, until one takes too long or too much memory.

    A step is a whole call, from positions on the host to forces on the host. Atoms do not move, so
    the neighbor list is checked in every step, but never rebuilt.

    Parameters
    ----------
    model : TensorNet
        The model.
    device : torch.device
        Device that computes.
    dtype : {"float32", "float64"}
        Precision of the network.
    backend : str
        One of `mlff_triton.engine.dispatch.BACKENDS`.
    sizes : sequence of int, optional
        Numbers of atoms, ascending; those in `SIZES` by default.
    slow : float
        Time in ms above which no larger system is measured.
    time : callable
        Measures a call of an engine with a batch, in ms.
    """
    engine = Engine(model, device, dtype, backend)
    for n_atoms in SIZES[device.type] if sizes is None else sizes:
        batch = droplet(model, n_atoms)
        n_edges = _count_edges(batch, model.cutoff)
        if backend == "exact" and n_edges > EXACT_EDGES:
            return
        try:
            ms = time(engine, batch)
        except (BackendError, torch.OutOfMemoryError):
            return
        yield Point(backend, n_atoms, n_edges, ms)
        if ms > slow:
            return


def _count_edges(batch: Batch, cutoff: float) -> int:
    """Count the directed edges of a droplet; without a cutoff, all pairs of atoms count."""
    n_atoms = len(batch.numbers)
    if cutoff == math.inf:
        return n_atoms * (n_atoms - 1)
    box = batch.boxes[0]
    return len(neighbor_list(batch.positions, cutoff, box.cell, box.pbc).senders)


def droplet(model: TensorNet, n_atoms: int) -> Batch:
    """Place atoms of the model's elements on a perturbed grid, as dense as water.

    They are in vacuum or, for a model with particle-mesh Ewald, in a cell that they fill.
    """
    rng = np.random.default_rng(n_atoms)
    per_side = int(np.ceil(n_atoms ** (1 / 3) - 1e-9))
    sites = np.indices((per_side,) * 3).reshape(3, -1).T[:n_atoms]
    spacing = DENSITY ** (-1 / 3)
    positions = sites * spacing + rng.uniform(-0.3, 0.3, (n_atoms, 3))
    cell = per_side * spacing * np.eye(3) if model.uses_mesh else None
    numbers = rng.choice(model.config.elements, n_atoms)
    return Batch.of(numbers, positions, cell, model.uses_mesh)


def fit(points: Sequence[Point]) -> Cost:
    """Fit non-negative costs by least squares of the relative errors."""
    sizes = np.array([[1.0, point.atoms, point.edges] for point in points])
    relative = sizes / np.array([[point.ms] for point in points])
    coefficients, _ = nnls(relative, np.ones(len(points)))
    launch, per_atom, per_edge = coefficients.tolist()
    return Cost(launch, per_atom, per_edge, float(np.abs(relative @ coefficients - 1).max()))


def fastest_by_size(costs: dict[str, Cost], cutoff: float, max_atoms: int) -> list[tuple[int, str]]:
    """Return the number of atoms above which each backend is fastest, at the density of water."""

    def fastest(n_atoms: int) -> str:
        n_edges = typical_edges(n_atoms, cutoff)
        return min(costs, key=lambda backend: costs[backend].ms(n_atoms, n_edges))

    return [(next(group), backend) for backend, group in groupby(range(1, max_atoms + 1), fastest)]
