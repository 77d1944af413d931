"""A force of a model whose partial charges act with those of a force field."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from mlff_triton._common.torch_settings import own_settings
from mlff_triton.calculators.openmm.cross_coulomb import CrossCoulomb, Geometry, Surroundings
from mlff_triton.calculators.openmm.force import EngineForce, positions_of
from mlff_triton.calculators.openmm.recipe import Recipe
from mlff_triton.engine.engine import Engine
from mlff_triton.engine.mesh import MeshPlan
from mlff_triton.kernels.electrostatics.parameters import pme_parameters
from mlff_triton.neighbors.box import FloatArray
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
    engine : Engine, optional
        An engine for the recipe; made at the first call by default.
    """

    def __init__(
        self, recipe: Recipe, surroundings: Surroundings, engine: Engine | None = None
    ) -> None:
        super().__init__(recipe, engine)
        self.surroundings = surroundings
        self._mesh: MeshPlan | None = None

    def __reduce__(self) -> tuple[type[EmbeddedForce], tuple[Recipe, Surroundings]]:
        return EmbeddedForce, (self.recipe, self.surroundings)

    def compute(self, state: openmm.State) -> tuple[float, NDArray[np.float64]]:
        """Compute the energy in kJ/mol, and forces on all particles in kJ/mol/nm."""
        positions, particles = positions_of(state), self.recipe.particles
        assert particles is not None
        sites = self.surroundings.sites
        at_sites = NM * positions[sites]
        box = None
        if self.surroundings.periodic:
            box = NM * np.array(state.getPeriodicBoxVectors()._value)
        with self._lock:
            batch = self._update(state, positions[particles])
            with own_settings():
                field = self._field(batch.positions, at_sites, box)
            prediction = self.engine.evaluate_in_field(batch, field)
            if self._plausibility is not None:
                self._plausibility.judge(batch, prediction)
        forces = np.zeros_like(positions)
        forces[particles] = prediction.forces.double().numpy()
        forces[particles] -= field.of_own.cpu().numpy() / field.n_calls
        forces[sites] -= field.of_sites.cpu().numpy() / field.n_calls
        energy = (prediction.energy.item() - self.recipe.shift) * EV_TO_KJ_PER_MOL
        return energy, forces * (EV_TO_KJ_PER_MOL * NM)

    def _field(self, own: FloatArray, sites: FloatArray, box: FloatArray | None) -> CrossCoulomb:
        """Return the field at positions [M, 3] and [S, 3] in a box [3, 3], all in Å."""
        device, s = self.engine.device, self.surroundings
        arrays = own, sites, s.charges
        points, at_sites, charges = (torch.from_numpy(array).to(device) for array in arrays)
        vectors = None if box is None else torch.from_numpy(box).to(device)
        mesh = None
        if s.method == "pme":
            assert box is not None
            self._mesh = self._mesh_for(torch.from_numpy(box))
            mesh = self._mesh.parameters
        return CrossCoulomb(s, Geometry(points, at_sites, charges, vectors), mesh)

    def _mesh_for(self, box: torch.Tensor) -> MeshPlan:
        """Return the last mesh, or another one if that is too coarse or far too fine."""
        s = self.surroundings
        wanted = MeshPlan(pme_parameters(box[None], s.cutoff, s.pme_error))
        return self._mesh if self._mesh is not None and self._mesh.serves(wanted) else wanted
