"""Which backend computes: the candidates, their rank, and what keeps some from serving a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mlff_triton._common.availability import triton_obstacle
from mlff_triton.engine.costs import Place, known, provenance, typical_edges
from mlff_triton.errors import BackendError
from mlff_triton.model.prediction import Ensemble
from mlff_triton.model.tensornet import TensorNet

BACKENDS = ("triton-graph", "triton", "exact", "torch")
"""Fastest first. On a CPU the exact module needs half the time of the engine over PyTorch: it works
out the radial networks once a pair of edges, and has no tables to make."""
CHANNELS = (32, 64, 128, 256)
DTYPES = (torch.float32, torch.float64)
TYPICAL_ATOMS = 1000
"""Size at which costs are compared where none is known, as when an engine is made: a box of water
22 Å wide, or a small protein."""


@dataclass(frozen=True)
class Candidate:
    """A backend, why it cannot serve, if so, and how long a step of it takes, if known."""

    backend: str
    obstacle: str | None
    ms: float | None = None


def candidates(
    models: Sequence[torch.nn.Module], device: torch.device, dtype: torch.dtype
) -> list[Candidate]:
    """All backends as `BACKENDS` has them, with the first obstacle that each meets."""
    found = []
    for backend in BACKENDS:
        obstacles = [_obstacle(backend, model, device, dtype) for model in models]
        found.append(Candidate(backend, next((o for o in obstacles if o), None)))
    return found


def rank(
    models: Sequence[torch.nn.Module],
    device: torch.device,
    dtype: torch.dtype,
    n_atoms: int = TYPICAL_ATOMS,
    n_edges: float | None = None,
) -> list[Candidate]:
    """All backends in order of preference.

    Backends whose costs are known are sorted by them among their own places; the others keep
    theirs, since nothing says that they are faster or slower than `BACKENDS` has it.

    Parameters
    ----------
    models : sequence of TensorNet
        A model, or the members of an ensemble, whose times add up.
    device, dtype : torch.device, torch.dtype
        Where and in what they compute.
    n_atoms, n_edges : int, float, optional
        Size of a step; by default, the edges are those of water.
    """
    times = _times(models, device, dtype, n_atoms, n_edges)
    found = [
        replace(c, ms=None if c.obstacle else times.get(c.backend))
        for c in candidates(models, device, dtype)
    ]
    by_cost = iter(sorted((c for c in found if c.ms is not None), key=lambda c: c.ms or 0.0))
    return [c if c.ms is None else next(by_cost) for c in found]


def choose(
    backend: str, models: Sequence[torch.nn.Module], device: torch.device, dtype: torch.dtype
) -> str:
    """The backend asked for, or with "auto" the best in `rank`.

    Raises
    ------
    BackendError
        If the one asked for is unknown or cannot serve; the message names one that can.
    """
    if backend == "auto":
        return eligible(rank(models, device, dtype), device)[0]
    ranked = candidates(models, device, dtype)
    asked = next((c for c in ranked if c.backend == backend), None)
    if asked is None:
        raise BackendError(
            f"backend={backend!r} is unknown: use 'auto' or one of {', '.join(BACKENDS)}"
        )
    if asked.obstacle:
        able = next(c.backend for c in ranked if c.obstacle is None)
        raise BackendError(f"backend={backend!r}: {asked.obstacle}; use backend={able!r}")
    return backend


def eligible(ranked: Sequence[Candidate], device: torch.device) -> list[str]:
    """Those that "auto" may take; the interpreter, which only tests ask for, is none."""
    able = [c.backend for c in ranked if c.obstacle is None]
    return [backend for backend in able if backend != "triton" or device.type == "cuda"]


def explain(
    model: TensorNet | Ensemble,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    n_atoms: int = TYPICAL_ATOMS,
) -> str:
    """A line for each backend, as `rank` sorts them at this size, and where times come from.

    Examples
    --------
    >>> from mlff_triton import load_model
    >>> print(explain(load_model("default")).splitlines()[0])
    triton-graph  no: Triton kernels need a GPU, and the device is cpu
    """
    members = list(model.members) if isinstance(model, Ensemble) else [model]
    device = torch.device(device)
    ranked = rank(members, device, dtype, n_atoms)
    name = choose("auto", members, device, dtype)
    taken = next(c for c in ranked if c.backend == name)
    lines = [f"{c.backend:<12}  {_verdict(c, taken)}" for c in ranked]
    lines += dict.fromkeys(provenance(place) for place in _places(members, device, dtype))
    if taken.ms is not None:
        lines.append(f"times are those of {n_atoms} atoms at the density of water")
    return "\n".join(lines)


def _verdict(candidate: Candidate, taken: Candidate) -> str:
    if candidate.obstacle:
        return f"no: {candidate.obstacle}"
    if candidate.ms is None or taken.ms is None:
        return "taken" if candidate == taken else "slower"
    time = f"{candidate.ms:.3g} ms"
    if candidate == taken:
        return f"taken, {time}"
    if candidate.ms < taken.ms:
        return f"faster at this size, {time}: ask for backend={candidate.backend!r}"
    return f"slower, {time}"


def _times(
    models: Sequence[torch.nn.Module],
    device: torch.device,
    dtype: torch.dtype,
    n_atoms: int,
    n_edges: float | None,
) -> dict[str, float]:
    """Time of a step, ms, of each backend whose costs are known for every model."""
    totals = dict.fromkeys(BACKENDS, 0.0)
    for model, place in zip(models, _places(models, device, dtype), strict=True):
        assert isinstance(model, TensorNet)
        edges = typical_edges(n_atoms, model.cutoff) if n_edges is None else n_edges
        costs = known(place)
        found = costs.backends if costs else {}
        totals = {b: ms + found[b].ms(n_atoms, edges) for b, ms in totals.items() if b in found}
    return totals


def _places(
    models: Sequence[torch.nn.Module], device: torch.device, dtype: torch.dtype
) -> list[Place]:
    return [Place.of(m.config, device, dtype) for m in models if isinstance(m, TensorNet)]


def _obstacle(
    backend: str, model: torch.nn.Module, device: torch.device, dtype: torch.dtype
) -> str | None:
    assert isinstance(model, TensorNet)
    config = model.config
    if backend == "exact":
        return None
    if config.num_layers == 0:
        return "the engine needs a model with an interaction layer"
    if backend == "torch":
        return None
    obstacle = triton_obstacle(device, interpreter=backend == "triton")
    if obstacle is not None:
        return obstacle
    if config.hidden_channels not in CHANNELS:
        return f"Triton kernels serve {CHANNELS} channels, not {config.hidden_channels}"
    if dtype not in DTYPES:
        return f"Triton kernels serve float32 and float64, not {dtype}"
    return None
