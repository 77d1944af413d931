"""The training cases: models, batches that change from step to step, and the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn

from benchmarks.engine.implementations import tensors
from benchmarks.engine.peers import peer_inputs, rebuild
from benchmarks.systems.models import charged_model, random_model
from benchmarks.systems.systems import System, conformers, random_box
from mlff_triton.model.prediction import predict
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import with_coulomb

BATCHES = 3  # taken in turn
MOLECULE = "aspirin"  # 21 atoms
COULOMB_CUTOFF = 8.0  # Å, less than half of a box of 512 atoms
MARGIN = 0.4  # Å, by which the neighbor list of our module exceeds the cutoff
ROOM = 1.1  # capacity of neighbor lists over the pairs of the first batch
LEARNING_RATE = 1e-4

Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


@dataclass(frozen=True)
class Case:
    """A model and the systems of a batch.

    Attributes
    ----------
    name : str
        Name of the case.
    model : callable
        Makes a model of ours, which is then rebuilt in TorchMD-NET's code.
    systems : callable
        Makes the systems of one batch.
    """

    name: str
    model: Callable[[], TensorNet]
    systems: Callable[[], System]

    @cache  # noqa: B019 - cases live as long as the process
    def capacity(self, cutoff: float) -> int:
        """Return the average capacity of neighbors per atom, the atom itself included."""
        system = self.systems()
        return 1 + math.ceil(ROOM * system.count_edges(cutoff) / system.n_atoms)


def build(case: Case, *, warp: bool, static_shapes: bool) -> nn.Module:
    """Build the model of a case in TorchMD-NET's code, to be trained; float32."""
    ours = case.model()
    capacity = case.capacity(ours.config.cutoff_upper)
    theirs = rebuild(ours, warp=warp, static_shapes=static_shapes, neighbors=capacity)
    coulomb = getattr(theirs.output_model, "distance", None)
    if coulomb is not None:  # which lists each pair once
        coulomb.max_num_pairs = -math.ceil(case.capacity(COULOMB_CUTOFF) / 2)
    return theirs.train().requires_grad_(True)


def batches(case: Case, device: torch.device) -> list[Batch]:
    """Make batches of the same systems with other positions and random labels."""
    system = case.systems()
    inputs = peer_inputs(system, device)
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(BATCHES):
        shape = system.positions.shape
        moves = 0.02 * torch.randn(shape, generator=generator)
        batch = {name: tensor for name, tensor in inputs.items() if tensor is not None}
        batch["pos"] = batch["pos"] + moves.to(device)
        batch["q"] = torch.zeros(system.n_systems, dtype=torch.int64, device=device)
        batch["energy"] = torch.randn(system.n_systems, generator=generator).to(device)
        batch["forces"] = torch.randn(shape, generator=generator).to(device)
        made.append(batch)
    return made


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error of energies and forces."""
    inputs = {name: batch[name] for name in ("z", "pos", "batch", "q", "box") if name in batch}
    energy, forces = model(**inputs)
    return _squared_errors(energy[:, 0], forces, batch)


def exact_loss(case: Case, device: torch.device) -> Loss:
    """Return the same loss for our own module.

    Its neighbor list is an input, whereas TorchMD-NET makes one in every step. The list has a
    margin, so it serves all batches of a case.
    """
    system = case.systems()
    graph = system.graph(case.model().cutoff + MARGIN).to(device)
    _, _, cell, index = tensors(system, device)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        found = predict(
            model,  # type: ignore[arg-type]
            batch["z"],
            batch["pos"].double(),
            graph,
            cell=cell,
            batch=index,
            create_graph=True,
            n_systems=system.n_systems,
        )
        return _squared_errors(found.energy, found.forces, batch)

    return loss


def _squared_errors(energy: Tensor, forces: Tensor, batch: Batch) -> Tensor:
    """Return the mean squared error of energies [B] plus that of forces [N, 3]."""
    energy_error = (energy - batch["energy"]).square().mean()
    error: Tensor = energy_error + (forces - batch["forces"]).square().mean()
    return error


def _charged() -> TensorNet:
    return with_coulomb(charged_model(), coulomb_cutoff=COULOMB_CUTOFF)


MODELS = {"tensornet": random_model, "tensornet2": _charged}
SYSTEMS = {
    "64x21": cache(partial(conformers, MOLECULE, 64)),
    "256x21": cache(partial(conformers, MOLECULE, 256)),
    "box-512": cache(partial(random_box, 512)),
}
CASES = {
    f"{model}-{systems}": Case(f"{model}-{systems}", MODELS[model], SYSTEMS[systems])
    for model in MODELS
    for systems in SYSTEMS
}
