"""Choice of a backend: the candidates, their order, and why some cannot serve a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from mlff_triton._common.availability import triton_obstacle
from mlff_triton.engine.costs import Target, known, provenance, typical_edges
from mlff_triton.engine.host_operators import can_load, cpu_obstacle
from mlff_triton.engine.parameters import table_obstacle
from mlff_triton.errors import BackendError
from mlff_triton.kernels.common.cpu.loop_folder import has_loops
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.prediction import Ensemble, members_of
from mlff_triton.model.tensornet import TensorNet

BACKENDS = ("triton-graph", "triton", "cpu", "exact", "torch")
"""All backends, the fastest first. Of the two in PyTorch, the exact module takes half the time on a
CPU, because it evaluates the radial networks once per pair of edges and needs no tables."""
CHANNELS = (32, 64, 128, 256)
MAX_CHARGES = 32  # per atom and layer
DTYPES = (torch.float32, torch.float64)
TYPICAL_ATOMS = 1000
"""Number of atoms for which costs are compared if the system is not known yet, as when an engine is
made. A box of water 22 Å wide or a small protein has about as many."""
COMPILE_MS = 6000.0
"""Time in ms to compile the loops for CPUs. It is spent once; they are then kept on disk."""
FEW_CALLS = 40
"""Number of calls that take less time in the exact module than to compile loops for CPUs, where
costs are not known. The module takes about 160 ms per call with 500 atoms on two cores."""


@dataclass(frozen=True)
class Candidate:
    """A backend for a model on a device.

    Attributes
    ----------
    backend : str
        One of `BACKENDS`.
    obstacle : str or None
        Reason why it cannot serve the model; None if it can.
    ms : float or None
        Time of a step in ms, if known.
    start_ms : float
        Time in ms before the first step, to compile what is not compiled yet.
    """

    backend: str
    obstacle: str | None
    ms: float | None = None
    start_ms: float = 0.0

    def total_ms(self, calls: int | None) -> float:
        """Return the time per call for a number of calls; None neglects the start."""
        return (self.ms or 0.0) + (self.start_ms / calls if calls else 0.0)


def candidates(
    models: Sequence[TensorNet], device: torch.device, dtype: torch.dtype
) -> list[Candidate]:
    """Return all backends in the order of `BACKENDS`, each with the first obstacle to its use."""
    of_models = _first(_model_obstacle(model, dtype) for model in models)
    found = []
    for backend in BACKENDS:
        obstacle = None
        if backend != "exact":
            own = (_backend_obstacle(backend, model, device, dtype) for model in models)
            obstacle = of_models or _first(own)
        waits = backend == "cpu" and obstacle is None and not has_loops()
        found.append(Candidate(backend, obstacle, start_ms=COMPILE_MS if waits else 0.0))
    return found


def rank(
    models: Sequence[TensorNet],
    device: torch.device,
    dtype: torch.dtype,
    n_atoms: int = TYPICAL_ATOMS,
    n_edges: float | None = None,
    calls: int | None = None,
) -> list[Candidate]:
    """Return all backends in order of preference.

    Backends of known cost are sorted among themselves. The others keep their position in
    `BACKENDS`, except that loops that have to be compiled come last if only a few calls are
    expected.

    Parameters
    ----------
    models : sequence of TensorNet
        A model, or the members of an ensemble, whose times add up.
    device : torch.device
        Device that computes.
    dtype : torch.dtype
        Precision of the network.
    n_atoms : int
        Number of atoms.
    n_edges : float, optional
        Number of directed edges; by default, as in water.
    calls : int, optional
        Number of calls to expect; by default, so many that the time to compile does not matter.
    """
    times = _times(models, device, dtype, n_atoms, n_edges)
    found = [
        replace(c, ms=None if c.obstacle else times.get(c.backend))
        for c in candidates(models, device, dtype)
    ]
    if calls is not None and calls < FEW_CALLS:
        found.sort(key=lambda c: c.ms is None and c.start_ms > 0)
    by_cost = iter(sorted((c for c in found if c.ms is not None), key=lambda c: c.total_ms(calls)))
    return [c if c.ms is None else next(by_cost) for c in found]


def choose(
    backend: str,
    models: Sequence[TensorNet],
    device: torch.device,
    dtype: torch.dtype,
    calls: int | None = None,
) -> str:
    """Return the requested backend, or the best one in `rank` for "auto".

    Parameters
    ----------
    backend : str
        "auto", or one of `BACKENDS`.
    models, device, dtype, calls
        Same as for `rank`.

    Raises
    ------
    BackendError
        If the requested backend is unknown or cannot serve. The message names one that can.
    """
    if backend == "exact":
        return backend
    found = _choose(backend, models, device, dtype, calls)
    return found if can_load(found) else _choose(backend, models, device, dtype, calls)


def _choose(
    backend: str,
    models: Sequence[TensorNet],
    device: torch.device,
    dtype: torch.dtype,
    calls: int | None,
) -> str:
    """Choose a backend by the obstacles that are known without importing it."""
    if backend == "auto":
        return eligible(rank(models, device, dtype, calls=calls), device)[0]
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
    """Return the backends that "auto" may choose: not the interpreter, which is for tests."""
    able = [c.backend for c in ranked if c.obstacle is None]
    return [backend for backend in able if backend != "triton" or device.type == "cuda"]


def explain(
    model: TensorNet | Ensemble,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    n_atoms: int = TYPICAL_ATOMS,
    calls: int | None = None,
) -> str:
    """Describe each backend in one line, in the order of `rank`, and the origin of the times.

    Parameters
    ----------
    model : TensorNet or Ensemble
        The model.
    device, dtype, n_atoms, calls
        Same as for `rank`.

    Examples
    --------
    >>> from mlff_triton import load_model
    >>> print(explain(load_model("default")).splitlines()[0])
    triton-graph  no: Triton kernels need a GPU, and the device is cpu
    """
    members = members_of(model)
    device = torch.device(device)
    name = choose("auto", members, device, dtype, calls)
    ranked = rank(members, device, dtype, n_atoms, calls=calls)
    taken = next(c for c in ranked if c.backend == name)
    verdicts = {c.backend: _verdict(c, taken, calls) for c in ranked}
    lines = [f"{backend:<12}  {verdict}" for backend, verdict in verdicts.items()]
    lines += dict.fromkeys(provenance(target) for target in _targets(members, device, dtype))
    if taken.ms is not None:
        lines.append(f"times are those of {n_atoms} atoms at the density of water")
    return "\n".join(lines)


def _verdict(candidate: Candidate, taken: Candidate, calls: int | None) -> str:
    if candidate.obstacle:
        return f"no: {candidate.obstacle}"
    seconds = candidate.start_ms / 1e3
    start = f", after {seconds:.2g} s to compile it once" if seconds else ""
    if candidate.ms is None or taken.ms is None:
        few = " for so few calls" if seconds and calls and calls < FEW_CALLS else ""
        return ("taken" if candidate == taken else f"slower{few}") + start
    time = f"{candidate.ms:.3g} ms{start}"
    if candidate == taken:
        return f"taken, {time}"
    if candidate.total_ms(calls) < taken.total_ms(calls):
        return f"faster at this size, {time}: ask for backend={candidate.backend!r}"
    return f"slower, {time}"


def _times(
    models: Sequence[TensorNet],
    device: torch.device,
    dtype: torch.dtype,
    n_atoms: int,
    n_edges: float | None,
) -> dict[str, float]:
    """Return the time of a step in ms of each backend whose costs are known for every model."""
    totals = dict.fromkeys(BACKENDS, 0.0)
    for model, target in zip(models, _targets(models, device, dtype), strict=True):
        edges = typical_edges(n_atoms, model.cutoff) if n_edges is None else n_edges
        costs = known(target)
        found = costs.backends if costs else {}
        totals = {b: ms + found[b].ms(n_atoms, edges) for b, ms in totals.items() if b in found}
    return totals


def _targets(models: Sequence[TensorNet], device: torch.device, dtype: torch.dtype) -> list[Target]:
    return [Target.of(m.config, device, dtype) for m in models]


def _first(obstacles: Iterable[str | None]) -> str | None:
    return next((obstacle for obstacle in obstacles if obstacle), None)


def _model_obstacle(model: TensorNet, dtype: torch.dtype) -> str | None:
    """Return the reason why only the exact module can serve a model, or None."""
    if model.config.num_layers == 0:
        return "the engine needs a model with an interaction layer"
    if not model.is_local and not model.config.self_loops:
        return "the engine needs a TensorNet2 with self-loops"
    return table_obstacle(model, dtype) if dtype in DTYPES else None


def _backend_obstacle(
    backend: str, model: TensorNet, device: torch.device, dtype: torch.dtype
) -> str | None:
    """Return the reason why a backend cannot serve a model of the engine on a device, or None."""
    config = model.config
    if backend == "torch":
        return None
    if backend == "cpu":
        return cpu_obstacle(device, dtype)
    obstacle = triton_obstacle(device, interpreter=backend == "triton")
    if obstacle is not None:
        return obstacle
    if config.hidden_channels not in CHANNELS:
        return f"Triton kernels serve {CHANNELS} channels, not {config.hidden_channels}"
    if isinstance(config, TensorNet2Config) and config.charge_channels > MAX_CHARGES:
        return f"Triton kernels serve {MAX_CHARGES} charges per atom, not {config.charge_channels}"
    if dtype not in DTYPES:
        return f"Triton kernels serve float32 and float64, not {dtype}"
    return None
