"""The conserved energy of every ensemble, which thermostats and barostats do not change."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.emt import EMT

from mlff_triton import TensorNetCalculator
from mlff_triton.dynamics import Settings, Simulation, Stage
from mlff_triton.testing import water_box

COPPER = {"timestep": 4.0, "every": 10, "compressibility": 4.5e-6}
COUPLINGS = {
    "langevin": ("nvt", {}),
    "rescaling": ("nvt", {"thermostat": "rescaling"}),
    "isotropic": ("npt", {}),
    "anisotropic": ("npt", {"barostat": "anisotropic"}),
    "both": ("npt", {"thermostat": "rescaling"}),
}


def energies(folder, ensemble, calculator, atoms, steps, **options):
    """Return conserved and total energies of a run in eV, float64 [2, M]."""
    settings = Settings(stages=(Stage(ensemble, steps),), **options)
    Simulation.start(atoms, calculator, settings, folder).run()
    with (folder / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return np.array([[float(row[f"{name}_eV"]) for row in rows] for name in ("conserved", "total")])


def copper():
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.05, seed=1)
    return atoms


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return by how much the integrator alone changes the energy, in eV."""
    folder = tmp_path_factory.mktemp("nve") / "run"
    conserved, total = energies(folder, "nve", EMT(), copper(), 200, **COPPER)
    np.testing.assert_allclose(conserved, total, rtol=0, atol=1e-8)
    return np.ptp(conserved)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_couplings_conserve_what_nve_does(tmp_path, coupling, undisturbed):
    ensemble, options = COUPLINGS[coupling]
    conserved, total = energies(
        tmp_path / "run", ensemble, EMT(), copper(), 200, **COPPER, **options
    )
    assert np.ptp(conserved) < 3 * undisturbed
    assert np.ptp(total) > 20 * undisturbed


@pytest.mark.filterwarnings("ignore::mlff_triton.UnknownChemistryWarning")  # of densities
@pytest.mark.gpu
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_couplings_on_a_gpu_conserve_what_nve_does(tmp_path, coupling):
    calculator, atoms = TensorNetCalculator(device="cuda", dtype="float64"), water_box(64)
    options = {"timestep": 0.5, "every": 20, "minimize": True}
    alone, _ = energies(tmp_path / "nve", "nve", calculator, atoms, 400, **options)
    ensemble, more = COUPLINGS[coupling]
    conserved, total = energies(
        tmp_path / "run", ensemble, calculator, atoms, 400, **options, **more
    )
    assert np.ptp(conserved) < 4 * np.ptp(alone)
    assert np.ptp(total) > 10 * np.ptp(alone)
