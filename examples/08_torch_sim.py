"""Molecules simulated side by side at 300 K with the shipped model, through TorchSim.

Usage: ``python 08_torch_sim.py [--copies 4] [--steps 100]``
"""

import argparse

import torch
import torch_sim
from ase.build import molecule

from mlff_triton.calculators import TorchSimModel

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--copies", type=int, default=4, help="simulations of each molecule")
parser.add_argument("--steps", type=int, default=100, help="time steps of 0.5 fs")
parser.add_argument("--device", default="auto")
options = parser.parse_args()

torch.manual_seed(0)
names = ["H2O", "CH3OH", "CH3CH2OH"]
molecules = [molecule(name) for name in names for _ in range(options.copies)]
model = TorchSimModel(device=options.device, state_dtype=torch.float64)
enumerated = hasattr(torch_sim, "Integrator")  # since TorchSim 0.4
state = torch_sim.integrate(
    molecules,
    model,
    integrator=torch_sim.Integrator.nvt_langevin if enumerated else torch_sim.nvt_langevin,
    n_steps=options.steps,
    temperature=300,
    timestep=0.0005,  # ps
)
for k, name in enumerate(names):
    energies = state.energy[k * options.copies : (k + 1) * options.copies]
    print(f"{name:8s}  {energies.mean():.4f} eV, averaged over {options.copies} simulations")
