"""Measured times of a model's steps, and the costs that fit them best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

SIZES = {"cpu": (16, 64, 256, 1024), "cuda": (16, 64, 256, 1024, 4096, 16384)}
SLOW = 250.0  # ms; a backend that takes longer is not tried on anything larger
SECONDS = 0.5  # to repeat a step for


@dataclass(frozen=True)
class Point:
    """A measured step.

    Attributes
    ----------
    backend : str
        What computed it.
    atoms, edges : int
        Its size; edges are directed, within the model's cutoff.
    ms : float
        Median time, ms.
    """

    backend: str
    atoms: int
    edges: int
    ms: float


def measure_backend(
    model: TensorNet, device: torch.device, dtype: str, backend: str
) -> Iterator[Point]:
    """Times of larger and larger systems, until one takes too long or too much memory.

    A step is a whole call, from positions on the host to forces on the host. Atoms stand still:
    the neighbor list is checked in every step, and never rebuilt.
    """
    engine = Engine(model, device, dtype, backend)
    for n_atoms in SIZES[device.type]:
        batch = droplet(model, n_atoms)
        n_edges = len(neighbor_list(batch.positions, model.cutoff).senders)
        try:
            ms = _step_time(engine, batch)
        except (BackendError, torch.OutOfMemoryError):
            return
        yield Point(backend, n_atoms, n_edges, ms)
        if ms > SLOW:
            return


def _step_time(engine: Engine, batch: Batch) -> float:
    """Median time of a call, ms."""
    return measure(
        lambda: engine.evaluate(batch),
        engine.device,
        seconds=SECONDS,
        warm_up=2,
        repeats=(3, 200),
        wall=True,
    ).p50


def droplet(model: TensorNet, n_atoms: int) -> Batch:
    """Atoms of the model's elements on a shaken grid at the density of water, in vacuum."""
    rng = np.random.default_rng(n_atoms)
    per_side = int(np.ceil(n_atoms ** (1 / 3) - 1e-9))
    sites = np.indices((per_side,) * 3).reshape(3, -1).T[:n_atoms]
    positions = sites * DENSITY ** (-1 / 3) + rng.uniform(-0.3, 0.3, (n_atoms, 3))
    return Batch.of(rng.choice(model.config.elements, n_atoms), positions)


def fit(points: Sequence[Point]) -> Cost:
    """The costs, none negative, whose squared relative errors add up to the least."""
    sizes = np.array([[1.0, point.atoms, point.edges] for point in points])
    relative = sizes / np.array([[point.ms] for point in points])
    coefficients, _ = nnls(relative, np.ones(len(points)))
    launch, per_atom, per_edge = coefficients.tolist()
    return Cost(launch, per_atom, per_edge, float(np.abs(relative @ coefficients - 1).max()))


def fastest_by_size(costs: dict[str, Cost], cutoff: float, max_atoms: int) -> list[tuple[int, str]]:
    """Which backend is fastest from how many atoms on, at the density of water."""

    def fastest(n_atoms: int) -> str:
        n_edges = typical_edges(n_atoms, cutoff)
        return min(costs, key=lambda backend: costs[backend].ms(n_atoms, n_edges))

    return [(next(group), backend) for backend, group in groupby(range(1, max_atoms + 1), fastest)]
