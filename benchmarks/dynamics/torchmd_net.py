"""TorchMD-NET in its fastest mode, made once for all simulations of a system.

ASE and OpenMM take energies and forces from the same function. Positions are copied into
its input, and nothing else is converted or copied in a step. TorchMD-NET's own calculator for ASE
makes all inputs anew in every step, so it is slower than this.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes
from torch import Tensor

from benchmarks.dynamics.melted import FloatArray, Start
from benchmarks.engine.gate import GateError, Truth
from benchmarks.engine.implementations import PEER_TOLERANCE, Outcome
from benchmarks.engine.peers import (
    compiled,
    eager,
    graphed,
    lone_atoms,
    peer_inputs,
    rebuild_for,
)
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

MODES: dict[str, tuple[Callable[..., Any], dict[str, bool]]] = {  # suffix -> runner, options
    "": (compiled, {"warp": True, "static_shapes": True, "derivative": False}),
    "-graph": (graphed, {"warp": True, "static_shapes": True}),
    "-eager": (eager, {"warp": False}),
}
GPU_MODES, CPU_MODES = ("", "-graph"), ("-eager",)
GRAPH_ATOMS = 2048  # with more, the compiled network is the faster one
WARM_UP, TRIALS = 3, 10  # calls
THREAD_OBJECTS = ("tree_manager_containers", "tree_manager_locks")


class SharedModel:
    """A network of TorchMD-NET that all routes to one system share.

    A list of neighbors that overflows stops the process of TorchMD-NET, so it has `room` for more
    edges than there are at the start.

    Parameters
    ----------
    network : TensorNet
        The model whose weights it gets.
    start : Start
        System to compute.
    device : torch.device
        Device to compute on.
    mode : str
        Key of `MODES`.
    """

    def __init__(self, network: TensorNet, start: Start, device: torch.device, mode: str) -> None:
        run, options = MODES[mode]
        system = start.system
        theirs = rebuild_for(system, network, room=room(system.n_atoms), **options).to(device)
        self.mode = mode
        self.is_periodic = system.cell is not None
        self._inputs = peer_inputs(system, device)
        self._references = lone_atoms(network, system).item()
        self._run = run(theirs, self._inputs)
        self._thread_objects = _thread_objects() if run is compiled else {}
        self._thread = threading.local()

    def compute(self, positions: FloatArray) -> tuple[float, FloatArray]:
        """Return the energy in eV and forces in eV/Å at positions in Å, from any thread."""
        self._enter_thread()
        with torch.no_grad():
            self._inputs["pos"].copy_(torch.from_numpy(positions))
        energy, forces = self._run()
        return energy.item() + self._references, _array(forces)

    def outcome(self, positions: FloatArray) -> Outcome:
        """Return the results as the gate expects them."""
        energy, forces = self.compute(positions)
        return Outcome(torch.tensor([energy]).double(), torch.from_numpy(forces))

    def _enter_thread(self) -> None:
        """Give a thread of OpenMM the captured graphs, which PyTorch keeps per thread."""
        if self._thread_objects and not hasattr(self._thread, "is_ready"):
            from torch._inductor import cudagraph_trees

            self._thread.is_ready = True
            for name, value in self._thread_objects.items():
                setattr(cudagraph_trees.local, name, value)
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))  # PyTorch takes this reference
                torch._C._stash_obj_in_tls(name, value)


def room(n_atoms: int) -> float:
    """Return the capacity of the neighbor list over the number of edges at the start.

    Fluctuations of a liquid, relative to its size, fall with the square root of the size.
    """
    return 1.05 + 3 / math.sqrt(n_atoms)


def _thread_objects() -> dict[str, Any]:
    from torch._inductor import cudagraph_trees

    return {name: cudagraph_trees.get_obj(cudagraph_trees.local, name) for name in THREAD_OBJECTS}


def _array(values: Tensor) -> FloatArray:
    return np.asarray(values.detach().cpu().double().numpy())


class Sharing:
    """The model of the latest system, compiled at its first use; also why that failed."""

    def __init__(self) -> None:
        self.forget()

    def has(self, start: Start) -> bool:
        """Return True if the model of this system is kept."""
        return self._start is start

    def model(
        self, network: TensorNet, start: Start, device: torch.device, truth: Truth | None
    ) -> SharedModel:
        """Return the model of a system in the fastest mode whose results are right at the start."""
        if self._start is not start:
            self._start, self._made = start, _failure(RuntimeError("its compilation was stopped"))
            try:
                made = fastest(network, start, device, truth)
            except Exception as error:  # noqa: BLE001 - the other routes fail for the same reason
                self._made = _failure(error)
            else:
                self._made = lambda: made
        return self._made()

    def forget(self) -> None:
        """Free the memory of the model."""
        self._start: Start | None = None
        self._made: Callable[[], SharedModel] = _failure(RuntimeError("it was forgotten"))


def _failure(error: Exception) -> Callable[[], SharedModel]:
    def fail() -> SharedModel:
        raise error

    return fail


def fastest(
    network: TensorNet, start: Start, device: torch.device, truth: Truth | None
) -> SharedModel:
    """Return the faster of the compiled network and the one in a CUDA graph, if both are right.

    Of large systems, the compiled network is the faster one, and is the only one if it is right.

    Raises
    ------
    GateError, RuntimeError
        If neither is right.
    """
    right: list[tuple[float, SharedModel]] = []
    reason: Exception | None = None
    for mode in GPU_MODES if device.type == "cuda" else CPU_MODES:
        if right and start.system.n_atoms > GRAPH_ATOMS:
            break
        try:
            shared = SharedModel(network, start, device, mode)
            right.append((_examine(shared, start, truth), shared))
        except (GateError, RuntimeError) as error:
            reason = error
    if not right and reason is not None:
        raise reason
    return min(right, key=itemgetter(0))[1]


def _examine(shared: SharedModel, start: Start, truth: Truth | None) -> float:
    """Return the seconds of some steps; raise a `GateError` if their results are wrong."""
    positions = start.system.positions
    for _ in range(WARM_UP):  # a graph is recorded in the second call, and replayed in the third
        shared.compute(positions)
    begun = time.perf_counter()
    for _ in range(TRIALS):
        shared.compute(positions)
    seconds = time.perf_counter() - begun
    if truth is not None:
        truth.check(shared.outcome(positions), PEER_TOLERANCE)
    return seconds


class SharedCalculator(Calculator):
    """A `SharedModel` as a calculator of ASE."""

    implemented_properties = ["energy", "forces"]  # noqa: RUF012 - the attribute of ASE

    def __init__(self, shared: SharedModel) -> None:
        super().__init__()
        self._shared = shared

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: list[str] | None = None,
        system_changes: list[str] = all_changes,
    ) -> None:
        """Compute energy and forces."""
        super().calculate(atoms, properties, system_changes)
        energy, forces = self._shared.compute(self.atoms.positions)
        self.results = {"energy": energy, "forces": forces}


def openmm_force(shared: SharedModel) -> Any:
    """Return a `SharedModel` as a PythonForce, as openmm-ml makes one."""
    import openmm

    def compute(state: Any) -> tuple[float, FloatArray]:
        positions = np.empty((state._getNumParticles(), 3))
        state._getVectorAsNumpy(state.Positions, positions)
        energy, forces = shared.compute(positions * NM)
        return energy * EV_TO_KJ_PER_MOL, forces * (EV_TO_KJ_PER_MOL * NM)

    force = openmm.PythonForce(compute)
    force.setUsesPeriodicBoundaryConditions(shared.is_periodic)
    return force
