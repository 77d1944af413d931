"""The ASE calculator and the engine under it by the same clock: what the way through ASE costs."""

from __future__ import annotations

import numpy as np
import torch
from ase import Atoms

from benchmarks.engine.implementations import Implementation, Outcome, Prepared, engine
from benchmarks.systems.systems import System
from mlff_triton.calculators import TensorNetCalculator
from mlff_triton.model.tensornet import TensorNet

STEPS = 10  # one after the other, as in simulations
MOVE = 0.002  # Å, about as far as an atom of water moves in half a femtosecond


def calculator(model: TensorNet, system: System, device: torch.device) -> Prepared:
    """Forces of moved atoms as a simulation asks for them; the result is read where they began."""
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=system.cell is not None)
    atoms.calc = TensorNetCalculator(model, device=str(device))
    moves = np.random.default_rng(0).normal(scale=MOVE, size=(2, system.n_atoms, 3))
    places = [system.positions + move for move in moves]

    def step() -> None:
        for _ in range(STEPS):
            atoms.positions = places[0]
            places.reverse()
            atoms.get_forces()

    def read(_result: None) -> Outcome:
        atoms.positions = system.positions
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        return Outcome(torch.tensor([energy]), torch.from_numpy(forces))

    return Prepared(step, read, STEPS)


ASE: tuple[Implementation, ...] = (
    Implementation("calculator", calculator, wall=True),
    Implementation("engine", engine, wall=True),
)
