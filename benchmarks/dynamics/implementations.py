"""The implementations that simulate in this process, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch

from benchmarks.calculators.openmm_forces import PLATFORMS
from benchmarks.dynamics.melted import Start
from benchmarks.dynamics.simulators import ASESimulator, OpenMMSimulator, Simulator
from benchmarks.dynamics.torch_sim_langevin import TorchSimSimulator
from benchmarks.dynamics.torchmd_net import SharedCalculator, SharedModel, openmm_force
from mlff_triton.calculators import TensorNetCalculator, create_openmm_force
from mlff_triton.model.tensornet import TensorNet

HOST = "Reference"


def _ase(
    network: TensorNet, start: Start, device: torch.device, seed: int | None = 0
) -> ASESimulator:
    return ASESimulator(start, TensorNetCalculator(network, device=str(device)), seed)


def _openmm(
    network: TensorNet, start: Start, device: torch.device, on_host: bool
) -> OpenMMSimulator:
    """Simulate with the faster of our routes."""
    force = create_openmm_force(
        start.system.numbers,
        network,
        periodic=start.system.cell is not None,
        device=str(device),
        route="python" if on_host else "auto",
    )
    return OpenMMSimulator(start, force, HOST if on_host else PLATFORMS[device.type])


def _torch_sim(network: TensorNet, start: Start, device: torch.device) -> Simulator:
    return TorchSimSimulator(start, network, device)


OUR_SIMULATORS: dict[str, Callable[[TensorNet, Start, torch.device], Simulator]] = {
    "ase": _ase,
    "ase-verlet": partial(_ase, seed=None),
    "openmm": partial(_openmm, on_host=False),
    "openmm-host": partial(_openmm, on_host=True),
    "torch-sim": _torch_sim,
}
PEER_SIMULATORS: dict[str, Callable[[SharedModel, Start, torch.device], Simulator]] = {
    "torchmd-net-ase": lambda shared, start, _: ASESimulator(start, SharedCalculator(shared)),
    "torchmd-net-openmm": lambda shared, start, device: OpenMMSimulator(
        start, openmm_force(shared), PLATFORMS[device.type]
    ),
    "torchmd-net-openmm-host": lambda shared, start, _: OpenMMSimulator(
        start, openmm_force(shared), HOST
    ),
}
REQUIRED = {
    "openmm": ("openmm",),
    "torch-sim": ("torch_sim",),
    "torchmd-net": ("torchmdnet", "warp"),
}


def missing(name: str) -> str | None:
    """Return the first package that an implementation needs and that is not installed, or None."""
    needed = [one for part, ones in REQUIRED.items() if part in name for one in ones]
    return next((package for package in needed if find_spec(package) is None), None)
