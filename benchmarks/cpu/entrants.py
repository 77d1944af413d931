"""The methods that take part, with what they need: ours by backend, and other packages."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from benchmarks.cpu.matgl_model import matgl
from benchmarks.cpu.methods import Evaluate, Runner, engine_of, torchmd_net
from benchmarks.engine import peers
from benchmarks.engine.implementations import OUR_TOLERANCE, PEER_TOLERANCE
from benchmarks.systems.systems import System
from mlff_triton.model.tensornet import TensorNet

OURS = "cpu"  # the backend that all others are compared with
COMPILERS = ("g++", "clang++", "cl")


@dataclass(frozen=True)
class Entrant:
    """One method of computing forces.

    Attributes
    ----------
    name : str
        Name in the results.
    prepare : callable
        Return a function of positions, float64 [N, 3] in Å, for a model and a system.
    tolerance : float
        Largest relative error of forces that passes.
    precision : str
        Precision of the network.
    package : str, optional
        Other package that computes.
    self_loops : bool, optional
        Kind of model that this package has: with self-loops in TorchMD-NET, without in MatGL.
    needs_compiler : bool
        If True, a C++ compiler is needed.
    """

    name: str
    prepare: Callable[[TensorNet, System], Evaluate]
    tolerance: float = PEER_TOLERANCE
    precision: str = "float32"
    package: str | None = None
    self_loops: bool | None = None
    needs_compiler: bool = False

    @property
    def is_peer(self) -> bool:
        """True for other packages."""
        return self.package is not None

    def refusal(self, model: TensorNet) -> str | None:
        """Return why this model is not supported here, or None if it is."""
        if self.package is not None and find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if self.self_loops is not None and model.config.self_loops != self.self_loops:
            return f"not a model of {self.package}"
        if self.needs_compiler and not any(map(shutil.which, COMPILERS)):
            return "no C++ compiler"
        return None


def _ours(name: str, backend: str, dtype: str = "float32") -> Entrant:
    tolerance = OUR_TOLERANCE if backend == OURS else PEER_TOLERANCE
    prepare = partial(engine_of, backend=backend, dtype=dtype)
    return Entrant(name, prepare, tolerance, dtype)


def _peer(name: str, run: Runner, *, warp: bool, compiled: bool = False) -> Entrant:
    prepare = partial(torchmd_net, run=run, warp=warp, compiled=compiled)
    kind = {"package": "torchmdnet", "self_loops": True, "needs_compiler": compiled}
    return Entrant(f"torchmd-net-{name}", prepare, **kind)


def _matgl(name: str, *, compiled: bool) -> Entrant:
    kind = {"package": "matgl", "self_loops": False, "needs_compiler": compiled}
    return Entrant(name, partial(matgl, compiled=compiled), **kind)


ENTRANTS: dict[str, Entrant] = {
    entrant.name: entrant
    for entrant in (
        _ours(OURS, OURS),
        _ours("exact", "exact"),
        _ours("torch", "torch"),
        _ours("cpu-float64", OURS, "float64"),
        _ours("exact-float64", "exact", "float64"),
        _peer("torch", peers.eager, warp=False),
        _peer("warp", peers.eager, warp=True),
        _peer("torch-compile", peers.compiled, warp=False, compiled=True),
        _peer("warp-compile", peers.compiled, warp=True, compiled=True),
        _matgl("matgl", compiled=False),
        _matgl("matgl-compile", compiled=True),
    )
}
