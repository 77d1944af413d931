"""Training of a tiny TensorNet on synthetic data, and its use through ASE.

Usage: ``python 03_train.py``

The data are randomly displaced clusters of 13 copper atoms with the energies and forces of a Morse
potential. On a GPU, all steps replay one CUDA graph. ``training/`` holds a realistic example, with
batches of molecules of different sizes and held-out data.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from ase import Atoms
from ase.calculators.morse import MorsePotential
from ase.cluster import Icosahedron
from torch import Tensor

import mlff_triton
from mlff_triton.model.fused import fused
from mlff_triton.training.step import TrainingStep

FAR = 100.0  # Å; the model ignores pairs beyond its cutoff, but the list of all has one length


def labeled_cluster(seed: int) -> Atoms:
    """Return a randomly displaced copper cluster whose calculator gives energy and forces."""
    atoms = Icosahedron("Cu", noshells=2)
    atoms.rattle(0.15, seed=seed)
    atoms.calc = MorsePotential(epsilon=0.343, r0=2.87, rho0=3.9)
    return atoms


def tensors_of(atoms: Atoms) -> dict[str, Tensor]:
    """Return positions, neighbors and labels of a cluster."""
    graph = mlff_triton.neighbor_list(atoms.positions, FAR)
    return {
        "numbers": torch.tensor(atoms.numbers),
        "positions": torch.tensor(atoms.positions),
        "row_ptr": graph.row_ptr,
        "senders": graph.senders,
        "shifts": graph.shifts,
        "reverse": graph.reverse,
        "energy": torch.tensor([atoms.get_potential_energy()]),
        "forces": torch.tensor(atoms.get_forces()),
    }


def loss_of(model: mlff_triton.TensorNet, cluster: dict[str, Tensor]) -> Tensor:
    """Return the squared errors of the energy per atom and of the forces."""
    neighbors = {name: cluster[name] for name in ("row_ptr", "senders", "shifts", "reverse")}
    prediction = mlff_triton.predict(
        fused(model),  # on a GPU, a model of the same weights on fused operators
        cluster["numbers"],
        cluster["positions"],
        mlff_triton.Graph(**neighbors),
        create_graph=True,
        n_systems=1,  # otherwise it is read from the GPU, which a graph cannot do
    )
    energy_error = prediction.energy - cluster["energy"]
    force_error = prediction.forces - cluster["forces"]
    return energy_error.square().sum() / len(cluster["numbers"]) + force_error.square().mean()


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--clusters", type=int, default=40)
parser.add_argument("--epochs", type=int, default=20)
args = parser.parse_args()

torch.manual_seed(0)
clusters = [labeled_cluster(seed) for seed in range(args.clusters)]
config = mlff_triton.TensorNetConfig(
    elements=(29,), hidden_channels=32, num_layers=1, num_rbf=16, uses_charge=False
)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = mlff_triton.TensorNet(config).to(device)
model.mean.fill_(np.mean([atoms.get_potential_energy() for atoms in clusters]))
data = [{name: t.to(device) for name, t in tensors_of(atoms).items()} for atoms in clusters]
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=args.epochs)
step = TrainingStep(model, loss_of, optimizer)

for epoch in range(args.epochs):
    losses = [step(cluster) for cluster in data]
    schedule.step()
    print(f"epoch {epoch + 1:3d}  loss {torch.stack(losses).mean():.5f}")

mlff_triton.save_model(model, "copper.safetensors", card="Copper clusters of a Morse potential.")

new = labeled_cluster(seed=args.clusters)
energy, forces = new.get_potential_energy(), new.get_forces()
new.calc = mlff_triton.TensorNetCalculator("copper.safetensors")
force_error = np.abs(new.get_forces() - forces).mean()
print(f"energy of a new cluster: {new.get_potential_energy():.3f} eV, true value {energy:.3f} eV")
print(f"forces: mean error {force_error:.3f} eV/Å, mean size {np.abs(forces).mean():.3f} eV/Å")
