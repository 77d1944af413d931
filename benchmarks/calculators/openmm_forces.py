"""Steps of OpenMM with our forces, with TorchMD-NET's and without any, by the host's clock.

The time step is 1e-6 ps, so that atoms stand still as in the other benchmarks and neither side
rebuilds more than it does at every step anyway. The difference to ``engine`` is the overhead of
OpenMM. Three implementations bound it from below: ``openmm-python-idle`` and ``openmm-torch-idle``
copy positions to PyTorch's GPU and zeros back, and ``openmm-empty`` is a System without forces.
In ``*-reference`` the model runs on the GPU and the rest on the host, on OpenMM's Reference
platform, so that the GPU does not switch between the CUDA contexts of OpenMM and PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from ase.data import atomic_masses
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.engine.implementations import (
    PEER_TOLERANCE,
    Implementation,
    Outcome,
    Prepared,
    engine,
)
from benchmarks.engine.peers import compiled, lone_atoms, peer_inputs, rebuild_for
from benchmarks.systems.systems import System
from mlff_triton.calculators import create_openmm_force
from mlff_triton.calculators.openmm.torch_force import import_openmmtorch
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

TIME_STEP = 1e-6  # ps
STEPS = 20  # per call, without reading the state, as in simulations
PLATFORMS = {"cuda": "CUDA", "cpu": "CPU"}

Compute = Callable[[Any], tuple[float, NDArray[np.float64]]]


def make_context(
    system: System,
    forces: Sequence[Any],
    integrator: Any,
    platform: str,
    properties: dict[str, str] | None = None,
) -> Any:
    """Return a Context with an integrator and forces."""
    import openmm

    particles = openmm.System()
    if system.cell is not None:
        particles.setDefaultPeriodicBoxVectors(*(system.cell / NM))
    for number in system.numbers:
        particles.addParticle(atomic_masses[number])
    for force in forces:
        particles.addForce(force)
    chosen = openmm.Platform.getPlatformByName(platform)
    return openmm.Context(particles, integrator, chosen, properties or {})


def _step(
    system: System, force: Any, device: torch.device, platform: str | None = None
) -> Prepared:
    """Prepare steps with at most one force; read results at the start positions."""
    import openmm

    integrator = openmm.VerletIntegrator(TIME_STEP)
    forces = [] if force is None else [force]
    context = make_context(system, forces, integrator, platform or PLATFORMS[device.type])
    positions = system.positions
    if system.cell is not None:  # OpenMM would wrap atoms into the box itself, with rounding
        positions = np.mod(positions, np.diag(system.cell))

    def reset() -> None:
        context.setPositions(positions / NM)
        context.setVelocities(np.zeros_like(system.positions))

    def step() -> None:
        integrator.step(STEPS)

    def read(_result: None) -> Outcome:
        reset()
        state = context.getState(energy=True, forces=True)
        energy = state.getPotentialEnergy()._value / EV_TO_KJ_PER_MOL
        forces = state.getForces(asNumpy=True)._value / (EV_TO_KJ_PER_MOL * NM)
        return Outcome(torch.tensor([energy], dtype=torch.float64), torch.from_numpy(forces))

    reset()
    return Prepared(step, read, STEPS)


def _ours(
    model: TensorNet, system: System, device: torch.device, route: str, platform: str | None = None
) -> Prepared:
    periodic = system.cell is not None
    force = create_openmm_force(
        system.numbers, model, periodic=periodic, device=str(device), route=route
    )
    return _step(system, force, device, platform)


def torchmd_net(
    model: TensorNet, system: System, device: torch.device, platform: str | None = None
) -> Prepared:
    """Prepare compiled TorchMD-NET in a PythonForce, as openmm-ml runs it."""
    import openmm

    theirs = rebuild_for(system, model, warp=True, static_shapes=True, derivative=False).to(device)
    inputs = peer_inputs(system, device)
    run = compiled(theirs, inputs)
    references = lone_atoms(model, system).item()

    def compute(state: Any) -> tuple[float, NDArray[np.float64]]:
        positions = state.getPositions(asNumpy=True)._value * NM
        with torch.no_grad():
            inputs["pos"].copy_(torch.from_numpy(positions))
            if inputs["box"] is not None:
                box = state.getPeriodicBoxVectors(asNumpy=True)._value * NM
                inputs["box"].copy_(torch.from_numpy(box))
        energy, forces = run()
        total = energy.item() + references
        return total * EV_TO_KJ_PER_MOL, forces.cpu().double().numpy() * EV_TO_KJ_PER_MOL * NM

    force = openmm.PythonForce(compute)
    force.setUsesPeriodicBoundaryConditions(system.cell is not None)
    return _step(system, force, device, platform)


def idle_python(_model: TensorNet, system: System, device: torch.device) -> Prepared:
    """Prepare a PythonForce without a model."""
    import openmm

    def compute(state: Any) -> tuple[float, NDArray[np.float64]]:
        positions = torch.from_numpy(state.getPositions(asNumpy=True)._value).to(device)
        return 0.0, torch.zeros_like(positions).cpu().numpy()

    return _step(system, openmm.PythonForce(compute), device)


class _Idle(nn.Module):
    """Zero energy and forces."""

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(1), torch.zeros_like(positions)


def idle_torch(_model: TensorNet, system: System, device: torch.device) -> Prepared:
    """Prepare a TorchForce without a model."""
    force = import_openmmtorch().TorchForce(torch.jit.script(_Idle()))
    force.setOutputsForces(True)
    return _step(system, force, device)


def empty(_model: TensorNet, system: System, device: torch.device) -> Prepared:
    """Prepare particles without a force; there are no results to check."""
    return _step(system, None, device)


_peer = partial(
    Implementation, max_atoms=65856, tolerance=PEER_TOLERANCE, needs_self_loops=True, wall=True
)
_on_host = partial(_ours, route="python", platform="Reference")

OPENMM: tuple[Implementation, ...] = (
    Implementation("openmm-python", partial(_ours, route="python"), wall=True),
    Implementation("openmm-torch", partial(_ours, route="torch"), wall=True, needs_gpu=True),
    Implementation("openmm-reference", _on_host, wall=True),
    Implementation("engine", engine, wall=True),
    _peer("openmm-torchmd-net", torchmd_net),
    _peer("openmm-torchmd-net-reference", partial(torchmd_net, platform="Reference")),
    Implementation("openmm-python-idle", idle_python, wall=True, gated=False),
    Implementation("openmm-torch-idle", idle_torch, wall=True, gated=False, needs_gpu=True),
    Implementation("openmm-empty", empty, wall=True, gated=False),
)
