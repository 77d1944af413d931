"""Which backend computes: the candidates, their rank, and what keeps some from serving a model."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlff_triton.errors import BackendError
from mlff_triton.prediction import Ensemble
from mlff_triton.tensornet import TensorNet

BACKENDS = ("triton-graph", "triton", "exact", "torch")
"""Fastest first. On a CPU the exact module needs half the time of the engine over PyTorch: it works
out the radial networks once a pair of edges, and has no tables to make."""
CHANNELS = (32, 64, 128, 256)
DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Candidate:
    """A backend, and why it cannot serve, if so."""

    backend: str
    obstacle: str | None


def candidates(
    models: Sequence[torch.nn.Module], device: torch.device, dtype: torch.dtype
) -> list[Candidate]:
    """All backends in order of preference, with the first obstacle that each meets."""
    found = []
    for backend in BACKENDS:
        obstacles = [_obstacle(backend, model, device, dtype) for model in models]
        found.append(Candidate(backend, next((o for o in obstacles if o), None)))
    return found


def choose(
    backend: str, models: Sequence[torch.nn.Module], device: torch.device, dtype: torch.dtype
) -> str:
    """The backend asked for, or the first that can serve.

    Raises
    ------
    BackendError
        If the one asked for is unknown or cannot serve; the message names one that can.
    """
    ranked = candidates(models, device, dtype)
    able = [c.backend for c in ranked if c.obstacle is None]
    if backend == "auto":
        return _preferred(ranked, device)
    asked = next((c for c in ranked if c.backend == backend), None)
    if asked is None:
        raise BackendError(
            f"backend={backend!r} is unknown: use 'auto' or one of {', '.join(BACKENDS)}"
        )
    if asked.obstacle:
        raise BackendError(f"backend={backend!r}: {asked.obstacle}; use backend={able[0]!r}")
    return backend


def explain(
    model: TensorNet | Ensemble,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> str:
    """A line for each backend: whether it is taken, and if not, why.

    Examples
    --------
    >>> from mlff_triton import load_model
    >>> print(explain(load_model("default")).splitlines()[0])
    triton-graph  no: Triton kernels need a GPU, and the device is cpu
    """
    members = list(model.members) if isinstance(model, Ensemble) else [model]
    ranked = candidates(members, torch.device(device), dtype)
    taken = _preferred(ranked, torch.device(device))
    lines = []
    for c in ranked:
        verdict = f"no: {c.obstacle}" if c.obstacle else "taken" if c.backend == taken else "slower"
        lines.append(f"{c.backend:<12}  {verdict}")
    return "\n".join(lines)


def _preferred(ranked: Sequence[Candidate], device: torch.device) -> str:
    """The first that can serve; the interpreter, which only tests ask for, is none."""
    able = [c.backend for c in ranked if c.obstacle is None]
    return next(b for b in able if b != "triton" or device.type == "cuda")


def _obstacle(
    backend: str, model: torch.nn.Module, device: torch.device, dtype: torch.dtype
) -> str | None:
    assert isinstance(model, TensorNet)
    config = model.config
    if backend == "exact":
        return None
    if config.num_layers == 0:
        return "the engine needs a model with an interaction layer"
    if config.zbl is not None:
        return "the engine has no nuclear repulsion (ZBL) yet"
    if backend == "torch":
        return None
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and backend == "triton"
    if device.type != "cuda" and not interpreted:
        return f"Triton kernels need a GPU, and the device is {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if config.hidden_channels not in CHANNELS:
        return f"Triton kernels serve {CHANNELS} channels, not {config.hidden_channels}"
    if dtype not in DTYPES:
        return f"Triton kernels serve float32 and float64, not {dtype}"
    return None
