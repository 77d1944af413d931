"""Training of a tiny TensorNet on synthetic data, and its use through ASE.

Usage: ``python 03_train.py``

The data are randomly displaced clusters of 13 copper atoms with the energies and forces of a Morse
potential. ``training/`` holds a realistic example, with batches and held-out data.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from ase import Atoms
from ase.calculators.morse import MorsePotential
from ase.cluster import Icosahedron

import mlff_triton


def labeled_cluster(seed: int) -> Atoms:
    """Return a randomly displaced copper cluster whose calculator gives energy and forces."""
    atoms = Icosahedron("Cu", noshells=2)
    atoms.rattle(0.15, seed=seed)
    atoms.calc = MorsePotential(epsilon=0.343, r0=2.87, rho0=3.9)
    return atoms


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--clusters", type=int, default=40)
parser.add_argument("--epochs", type=int, default=20)
args = parser.parse_args()

torch.manual_seed(0)
clusters = [labeled_cluster(seed) for seed in range(args.clusters)]
config = mlff_triton.TensorNetConfig(
    elements=(29,), hidden_channels=32, num_layers=1, num_rbf=16, uses_charge=False
)
model = mlff_triton.TensorNet(config)
model.mean.fill_(np.mean([atoms.get_potential_energy() for atoms in clusters]))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=args.epochs)

for epoch in range(args.epochs):
    losses = []
    for atoms in clusters:
        prediction = mlff_triton.predict(
            model,
            torch.tensor(atoms.numbers),
            torch.tensor(atoms.positions),
            mlff_triton.neighbor_list(atoms.positions, model.cutoff),
            create_graph=True,
        )
        energy_error = prediction.energy - atoms.get_potential_energy()
        force_error = prediction.forces - torch.tensor(atoms.get_forces())
        loss = energy_error.square().sum() / len(atoms) + force_error.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    schedule.step()
    print(f"epoch {epoch + 1:3d}  loss {np.mean(losses):.5f}")

mlff_triton.save_model(model, "copper.safetensors", card="Copper clusters of a Morse potential.")

new = labeled_cluster(seed=args.clusters)
energy, forces = new.get_potential_energy(), new.get_forces()
new.calc = mlff_triton.TensorNetCalculator("copper.safetensors")
force_error = np.abs(new.get_forces() - forces).mean()
print(f"energy of a new cluster: {new.get_potential_energy():.3f} eV, true value {energy:.3f} eV")
print(f"forces: mean error {force_error:.3f} eV/Å, mean size {np.abs(forces).mean():.3f} eV/Å")
