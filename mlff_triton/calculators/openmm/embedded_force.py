"""A force of a model whose partial charges interact with the charges of a force field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mlff_triton._common.torch_settings import own_settings
from mlff_triton.calculators.openmm.cross_coulomb import Surroundings
from mlff_triton.calculators.openmm.decoupling_checks import ELECTROSTATICS
from mlff_triton.calculators.openmm.force import EngineForce, positions_of
from mlff_triton.calculators.openmm.particle_field import ParticleField
from mlff_triton.calculators.openmm.recipe import Recipe
from mlff_triton.engine.batch import IntArray
from mlff_triton.engine.engine import Engine
from mlff_triton.units import EV_TO_KJ_PER_MOL, NM

if TYPE_CHECKING:
    import openmm


class EmbeddedForce(EngineForce):
    """The function of a PythonForce, from a State of all particles to energy and forces.

    Parameters
    ----------
    recipe : Recipe
        Model and atoms of the part, which is not periodic, and options.
    surroundings : Surroundings
        Charges of the force field.
    is_decoupled : bool
        True if ``lambda_electrostatics`` multiplies the charges of the part in their interaction
        with the force field and with their own periodic images.
    engine : Engine, optional
        An engine for the recipe; made at the first call by default.
    """

    def __init__(
        self,
        recipe: Recipe,
        surroundings: Surroundings,
        is_decoupled: bool = False,
        engine: Engine | None = None,
    ) -> None:
        super().__init__(recipe, engine)
        self.surroundings, self.is_decoupled = surroundings, is_decoupled
        self._field: ParticleField | None = None

    def __reduce__(self) -> tuple[type[EmbeddedForce], tuple[Recipe, Surroundings, bool]]:
        return EmbeddedForce, (self.recipe, self.surroundings, self.is_decoupled)

    def compute(self, state: openmm.State) -> tuple[float, NDArray[np.float64]]:
        """Compute the energy in kJ/mol, and forces on all particles in kJ/mol/nm."""
        particles = self.recipe.particles
        assert particles is not None
        box = None
        if self.surroundings.periodic:
            box = NM * np.array(state.getPeriodicBoxVectors()._value)
        scale = state.getParameters()[ELECTROSTATICS] if self.is_decoupled else 1.0
        with self._lock:
            field = self._field_of(state, particles)
            positions = positions_of(state, field.positions)
            batch = self._update(state, positions[particles])
            with own_settings():
                field.set(batch.positions, box, scale)
            prediction = self.engine.evaluate_in_field(batch, field)
            if self._plausibility is not None:
                self._plausibility.judge(batch, prediction)
            forces = field.forces
        forces[particles] += prediction.forces.double().numpy() * (EV_TO_KJ_PER_MOL * NM)
        energy = (prediction.energy.item() - self.recipe.shift) * EV_TO_KJ_PER_MOL
        return energy, forces

    def _field_of(self, state: openmm.State, part: IntArray) -> ParticleField:
        """Return the field for as many particles as a state has."""
        n_particles = state._getNumParticles()
        if self._field is None or len(self._field.positions) != n_particles:
            with own_settings():
                given = part, n_particles, self.engine.device, self.engine.backend
                self._field = ParticleField(self.surroundings, *given)
        return self._field
