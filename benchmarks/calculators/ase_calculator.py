"""Steps of the ASE calculator and of the engine below it, timed with the same clock.

The difference is the overhead of ASE.
"""

from __future__ import annotations

import numpy as np
import torch
from ase import Atoms

from benchmarks.engine.implementations import Implementation, Outcome, Prepared, engine
from benchmarks.systems.systems import System
from mlff_triton.calculators import TensorNetCalculator
from mlff_triton.model.tensornet import TensorNet

STEPS = 10  # in a row, as in simulations
MOVE = 0.002  # Å, roughly the move of an atom of water in half a femtosecond


def calculator(model: TensorNet, system: System, device: torch.device) -> Prepared:
    """Prepare steps of moving atoms, as in simulations; read results at the start positions."""
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=system.cell is not None)
    atoms.calc = TensorNetCalculator(model, device=str(device))
    moves = np.random.default_rng(0).normal(scale=MOVE, size=(2, system.n_atoms, 3))
    moved = [system.positions + move for move in moves]

    def step() -> None:
        for _ in range(STEPS):
            atoms.positions = moved[0]
            moved.reverse()
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
