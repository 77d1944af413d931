"""Exactly solvable calculators for simulations."""

from __future__ import annotations

import numpy as np
from ase.calculators.calculator import Calculator, all_changes


class Springs(Calculator):
    """Independent harmonic springs that hold the atoms at their anchors."""

    implemented_properties = ("energy", "forces")
    stiffness = 10.0  # eV/Å^2

    def __init__(self, anchors):
        super().__init__()
        self.anchors = np.array(anchors)

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)):
        super().calculate(atoms, properties, system_changes)
        stretch = self.atoms.positions - self.anchors
        self.results = {
            "energy": 0.5 * self.stiffness * float((stretch**2).sum()),
            "forces": -self.stiffness * stretch,
        }


class FailsAfter(Springs):
    """Springs that return a given energy, or raise a given error, after some evaluations."""

    def __init__(self, anchors, evaluations, energy):
        super().__init__(anchors)
        self.left = evaluations
        self.energy = energy

    def calculate(self, atoms=None, properties=("energy",), system_changes=tuple(all_changes)):
        super().calculate(atoms, properties, system_changes)
        self.left -= 1
        if self.left < 0:
            if isinstance(self.energy, Exception):
                raise self.energy
            self.results["energy"] = self.energy


def stop_at(simulation, step):
    return lambda: simulation.step >= step
