"""A part of an OpenMM System whose charges are in a force field, by kernels alone."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("openmm", reason="OpenMM is an optional extra")
pytest.importorskip("openmmml", reason="openmm-ml is an optional extra")

from mlff_triton.testing import assert_within
from tests.support import mixed_systems as systems
from tests.support.charged import charged_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning"),
]

PART = [0, 1, 2, 15, 16, 17]


@pytest.mark.parametrize("method", ["NoCutoff", "CutoffPeriodic", "PME"])
def test_kernels_compute_what_the_exact_module_does(method, device, graphs):
    atoms, model = systems.waters(), charged_model(hidden_channels=32)
    model.std.fill_(1.0)
    system = systems.classical(atoms, method, 0.45)
    options = {"forceGroup": 7, "damping": 0.08, "pme_error": 1e-4}
    ours = {"device": device, "backend": "triton-graph" if graphs else "triton"}
    exact, fused = (
        systems.context_of(systems.mixed(atoms, system, PART, model, **given), atoms.positions)
        for given in (options | {"backend": "exact"}, options | ours)
    )
    for step in range(3):
        positions = atoms.positions + step * np.array([0.9, -0.5, 0.3])
        states = []
        for context in (exact, fused):
            context.setPositions(positions / 10)
            states.append(context.getState(energy=True, forces=True, groups={7}))
        energies = [state.getPotentialEnergy()._value for state in states]
        forces = [state.getForces(asNumpy=True)._value for state in states]
        assert energies[1] == pytest.approx(energies[0], abs=1e-6)
        assert_within(forces[1], forces[0], 1e-8)
        assert np.abs(np.delete(forces[0], PART, axis=0)).max() > 1
