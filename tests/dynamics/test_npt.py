"""Constant pressure: volumes of metals, shapes of cells, and what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.calculator import Calculator
from ase.calculators.emt import EMT
from scipy.optimize import brentq

from mlff_triton import TensorNetCalculator, UnknownChemistryWarning
from mlff_triton.dynamics import Settings, Simulation, Stage, load_restart
from mlff_triton.dynamics.outputs import LOG, RESTART
from mlff_triton.errors import InputError, SimulationError
from mlff_triton.testing.structures import water_box

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
        pytest.param("Pt", {"barostat": "anisotropic"}, marks=pytest.mark.slow),
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


@pytest.mark.filterwarnings("ignore:DCDReader currently makes:DeprecationWarning")
@pytest.mark.parametrize("trajectory", ["dcd", "xtc"])
@pytest.mark.parametrize("cell", ["orthogonal", "triclinic"])
def test_cells_of_any_shape_fit_binary_trajectories(tmp_path, trajectory, cell):
    """The anisotropic barostat leaves cells lower triangular, as these formats want them."""
    mdanalysis = pytest.importorskip("MDAnalysis")
    atoms = bulk("Cu", cubic=cell == "orthogonal")
    atoms.set_cell(atoms.cell.standard_form()[0], scale_atoms=True)
    folders = {form: tmp_path / form for form in ("xyz", trajectory)}
    for form, folder in folders.items():
        Simulation.start(atoms, EMT(), sheared(trajectory=form), folder).run()
    frames = ase.io.read(folders["xyz"] / "trajectory.xyz", index=":")
    universe = mdanalysis.Universe(
        folders[trajectory] / "topology.pdb", folders[trajectory] / f"trajectory.{trajectory}"
    )
    assert len(frames) == len(universe.trajectory) == 6
    for frame, found in zip(frames, universe.trajectory, strict=True):
        np.testing.assert_allclose(found.dimensions, frame.cell.cellpar(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.positions, frame.positions, atol=0.006)
        assert (np.triu(frame.cell.array, 1) == 0).all()
    assert np.ptp([frame.cell.cellpar() for frame in frames], axis=0).min() > 1e-4


def sheared(**options) -> Settings:
    """Return settings of a run whose cell changes its shape."""
    defaults = {"timestep": 2.0, "every": 20, "barostat": "anisotropic", "seed": 3}
    return Settings(stages=(Stage("npt", 100),), **defaults, **options)


def test_the_orientation_of_a_cell_changes_no_physics(tmp_path):
    """A turned crystal keeps the direction of a and the plane of a and b, too."""
    atoms = bulk("Pt") * (2, 1, 1)
    turned = atoms.copy()
    turned.rotate(70, (1, 2, 3), rotate_cell=True)
    cells, energies = [], []
    for name, start in (("given", atoms), ("turned", turned)):
        simulation = Simulation.start(start, EMT(), sheared(), tmp_path / name)
        simulation.run()
        old, new = start.cell.array, simulation.atoms.cell.array
        cells.append((old, new))
        assert np.linalg.norm(np.cross(old[0], new[0])) < 1e-8
        assert abs(np.cross(old[0], old[1]) @ new[1]) < 1e-8
        energies.append(rows_of(tmp_path / name)["conserved_eV"])
        assert np.ptp(energies[-1]) < 0.01
    with pytest.raises(InputError, match="DCD and XTC need a cell"):
        Simulation.start(turned, EMT(), sheared(trajectory="dcd"), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize(("pressure", "time"), [(1e9, 1000.0), (-1e9, 1e4)])
def test_a_volume_that_jumps_ends_the_run(tmp_path, pressure, time):
    settings = sheared(pressure=pressure, barostat_time=time)
    simulation = Simulation.start(bulk("Cu", cubic=True), EMT(), settings, tmp_path / "run")
    with pytest.raises(SimulationError, match=r"volume jumped after step \d+.*last good frame"):
        simulation.run()
    assert load_restart(tmp_path / "run" / RESTART).state.step % 10 == 0


def test_a_volume_that_grows_without_end_is_an_error(tmp_path):
    """Beyond the strength of a metal, tension pulls it apart, in moves of any size."""
    settings = Settings(
        stages=(Stage("npt", 2000),), timestep=2.0, every=20, pressure=-1e6, barostat_time=1e4
    )
    simulation = Simulation.start(bulk("Cu", cubic=True), EMT(), settings, tmp_path / "run")
    with pytest.raises(SimulationError, match=r"the volume has grown from 47\.\d* to \d+"):
        simulation.run()


def test_a_calculator_without_stress_is_refused(tmp_path):
    atoms = Atoms("Ar", pbc=True, cell=[20.0] * 3)
    simulation = Simulation.start(atoms, NoStress(), sheared(), tmp_path / "run")
    with pytest.raises(SimulationError, match="npt needs stresses"):
        simulation.run()


class NoStress(Calculator):
    """A calculator of free atoms."""

    implemented_properties = ("energy", "forces")

    def calculate(self, atoms=None, properties=(), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        self.results = {"energy": 0.0, "forces": np.zeros((len(atoms), 3))}


@pytest.mark.parametrize("model", ["default", "tensornet-gfn2"])
def test_models_of_molecules_in_vacuum_warn_of_densities(model, tmp_path):
    calculator = TensorNetCalculator(model, device="cpu")
    for ensemble in ("npt", "nvt"):
        settings = Settings((Stage(ensemble, 1),))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UnknownChemistryWarning)
            Simulation.start(water_box(27), calculator, settings, tmp_path / ensemble)
        found = [str(one.message) for one in caught if one.category is UnknownChemistryWarning]
        assert len(found) == (ensemble == "npt")
        assert all("densities of liquids and crystals are wrong" in text for text in found)
    extended = replace(settings, stages=(*settings.stages, Stage("npt", 1)))
    snapshot = replace(load_restart(tmp_path / "nvt" / RESTART), settings=extended)
    with pytest.warns(UnknownChemistryWarning, match="densities of liquids"):
        Simulation.resume(snapshot, calculator, tmp_path / "nvt")
