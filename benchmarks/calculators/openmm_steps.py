"""Steps of OpenMM on its fastest platform, by the host's clock: ours, TorchMD-NET's, and none.

Time steps are of 1e-6 ps: atoms stand still, as in the other benches, so that neither side rebuilds
what it does not rebuild at every step anyway. What a step takes beyond the ``engine`` is what the
way through OpenMM costs. Least of all that can be: ``openmm-python-idle`` and ``openmm-torch-idle``
take positions to PyTorch's GPU, and zeros back; ``openmm-empty`` is a System without forces.
``*-reference`` has the model on the GPU and all else on OpenMM's Reference platform: on the
host, so that the GPU does not go to and fro between OpenMM's CUDA context and PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
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
STEPS = 20  # without looking in between, as in simulations
PLATFORMS = {"cuda": "CUDA", "cpu": "CPU"}

Compute = Callable[[Any], tuple[float, NDArray[np.float64]]]


def make_context(
    system: System, force: Any, time_step: float, platform: str, **properties: str
) -> Any:
    """A Context that steps particles by Verlet with one force, or none; time step in ps."""
    import openmm

    simulated = openmm.System()
    if system.cell is not None:
        simulated.setDefaultPeriodicBoxVectors(*(system.cell / NM))
    for number in system.numbers:
        simulated.addParticle(atomic_masses[number])
    if force is not None:
        simulated.addForce(force)
    integrator = openmm.VerletIntegrator(time_step)
    chosen = openmm.Platform.getPlatformByName(platform)
    return openmm.Context(simulated, integrator, chosen, properties)


def _step(
    system: System, force: Any, device: torch.device, platform: str | None = None
) -> Prepared:
    """Steps of a System with one force; results are read where the atoms began."""
    context = make_context(system, force, TIME_STEP, platform or PLATFORMS[device.type])
    integrator = context.getIntegrator()
    positions = system.positions
    if system.cell is not None:  # OpenMM takes atoms into the box, and rounds where they come to
        positions = np.mod(positions, np.diag(system.cell))

    def begin() -> None:
        context.setPositions(positions / NM)
        context.setVelocities(np.zeros_like(system.positions))

    def step() -> None:
        integrator.step(STEPS)

    def read(_result: None) -> Outcome:
        begin()
        state = context.getState(energy=True, forces=True)
        energy = state.getPotentialEnergy()._value / EV_TO_KJ_PER_MOL
        forces = state.getForces(asNumpy=True)._value / (EV_TO_KJ_PER_MOL * NM)
        return Outcome(torch.tensor([energy], dtype=torch.float64), torch.from_numpy(forces))

    begin()
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
    """TorchMD-NET, compiled, in a PythonForce: as openmm-ml drives it."""
    import openmm

    options = {"warp": True, "static_shapes": True, "derivative": False}
    theirs = rebuild_for(system, model, **options).to(device)
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
    """A PythonForce without a model."""
    import openmm

    def compute(state: Any) -> tuple[float, NDArray[np.float64]]:
        positions = torch.from_numpy(state.getPositions(asNumpy=True)._value).to(device)
        return 0.0, torch.zeros_like(positions).cpu().numpy()

    return _step(system, openmm.PythonForce(compute), device)


class _Idle(nn.Module):
    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros(1), torch.zeros_like(positions)


def idle_torch(_model: TensorNet, system: System, device: torch.device) -> Prepared:
    """A TorchForce without a model."""
    force = import_openmmtorch().TorchForce(torch.jit.script(_Idle()))
    force.setOutputsForces(True)
    return _step(system, force, device)


def empty(_model: TensorNet, system: System, device: torch.device) -> Prepared:
    """Nothing but particles, and no results to be checked."""
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
