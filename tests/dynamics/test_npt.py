"""Constant pressure: volumes of metals, shapes of cells, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.emt import EMT
from scipy.optimize import brentq

from mlff_triton.dynamics import Settings, Simulation, Stage
from mlff_triton.dynamics.outputs import LOG

TEMPERATURE = 100.0


def pressure_of(atoms: Atoms, scale: float) -> float:
    """Return the pressure of a crystal at rest whose cell is scaled, eV/Å^3."""
    scaled = atoms.copy()
    scaled.set_cell(scale * atoms.cell.array, scale_atoms=True)
    scaled.calc = EMT()
    return -scaled.get_stress(voigt=False).trace() / 3


def crystal(element: str) -> tuple[Atoms, float]:
    """Return a cubic cell of a metal without pressure, and its bulk modulus in eV/Å^3."""
    atoms = bulk(element, cubic=True)
    scale = brentq(lambda scale: pressure_of(atoms, scale), 0.95, 1.08, xtol=1e-8)
    atoms.set_cell(scale * atoms.cell.array, scale_atoms=True)
    slope = (pressure_of(atoms, 1.001) - pressure_of(atoms, 0.999)) / 0.002
    return atoms, -slope / 3


def rows_of(folder) -> np.ndarray:
    return np.genfromtxt(folder / LOG, delimiter=",", names=True, dtype=None, encoding=None)


@pytest.mark.parametrize(
    ("element", "options"),
    [
        ("Cu", {}),
        ("Pt", {"barostat": "anisotropic"}),
        ("Pt", {"barostat_time": 50.0, "thermostat": "rescaling"}),
    ],
)
def test_volumes_of_metals_vary_as_their_bulk_modulus_says(tmp_path, element, options):
    """A compressibility of water relaxes them within a few steps, or in less than one."""
    atoms, modulus = crystal(element)
    settings = Settings(
        stages=(Stage("npt", 4000),),
        temperature=TEMPERATURE,
        timestep=2.0,
        every=4000,
        log_every=5,
        seed=1,
        **options,
    )
    Simulation.start(atoms, EMT(), settings, tmp_path / "run").run()
    rows = rows_of(tmp_path / "run")[100:]
    volumes = rows["volume_A3"]
    expected = units.kB * TEMPERATURE * volumes.mean() / modulus
    blocks = np.array_split((volumes - volumes.mean()) ** 2, 20)
    ratios = np.array([block.mean() for block in blocks]) / expected
    error = ratios.std() / 20**0.5
    assert error < 0.2
    assert ratios.mean() == pytest.approx(1, abs=3 * error + 0.05)
    share = 1 - 1 / len(atoms) if "thermostat" in options else 1.0  # without the total momentum
    assert rows["temperature_K"].mean() == pytest.approx(share * TEMPERATURE, rel=0.1)
