"""LAMMPS on several ranks: the results of one process, whatever the decomposition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton import TensorNetCalculator
from mlff_triton.model.config import ZBLConfig
from mlff_triton.testing import tolerance
from tests.calculators.lammps.systems import (
    needs_lammps,
    needs_mpiexec,
    of_engine,
    run_ranks,
    small_model,
    water,
)
from tests.support.tensornets import uncertain

pytestmark = needs_lammps

Results = dict[str, np.ndarray]
DROPLET = ["empty", "open"]
STATIC = ["orthogonal", "triclinic", "thin", "tiny", "tiled", "newton", *DROPLET]


def structure(name: str) -> Atoms:
    if name in DROPLET:
        droplet = water((2, 2, 1))
        droplet.set_cell([40, 30, 30])
        return droplet
    return {
        "triclinic": water((4, 2, 3), tilt=0.2),
        "thin": water((2, 2, 2)),
        "tiny": water((1, 1, 2)),
    }.get(name, water())


@pytest.fixture(scope="module")
def alone() -> Results:
    """Return the results of one process."""
    from tests.calculators.lammps.worker import all_results

    return all_results("cpu", "cpu")


def check_single_points(found: Results, channels: int = 8, limit: float = 1e-10) -> None:
    for name in STATIC:
        for key, value in of_engine(small_model(channels), structure(name)).items():
            actual = found[f"{name}-float64/{key}"]
            label = f"{name}, {key}"
            np.testing.assert_allclose(actual, value, limit, limit, err_msg=label)


def check_float32(found: Results, channels: int = 8) -> None:
    truth = of_engine(small_model(channels), water())
    engine = of_engine(small_model(channels), water(), "float32")
    for key, value in truth.items():
        error = np.abs(found[f"orthogonal-float32/{key}"] - value).max()
        own_error = np.abs(engine[key] - value).max()
        assert error <= 3 * own_error + 1e-6 * np.abs(value).max(), key


def test_one_process_has_the_results_of_the_exact_module(alone: Results) -> None:
    check_single_points(alone)
    check_float32(alone)


def test_energy_is_conserved(alone: Results) -> None:
    potential, total, _ = alone["nve/thermo"].T
    assert np.ptp(total) < 0.01 * np.ptp(potential)


def test_the_box_changes_at_constant_pressure(alone: Results) -> None:
    _, _, volume = alone["npt/thermo"].T
    assert np.ptp(volume) > 1e-3 * volume[0]


def test_the_results_after_a_flip_of_the_tilt_are_those_of_the_exact_module(
    alone: Results,
) -> None:
    first, last = alone["flip/cells"]
    assert first[1, 0] > 0.4 * first[0, 0]
    assert last[1, 0] < -0.4 * last[0, 0]
    atoms = Atoms(water((3, 3, 2)).numbers, alone["flip/positions"], cell=last, pbc=True)
    expected = of_engine(small_model(zbl=ZBLConfig(1.5, 14.4)), atoms)
    np.testing.assert_allclose(alone["flip/forces"], expected["forces"], 1e-10, 1e-10)
    np.testing.assert_allclose(alone["flip/thermo"][-1, 0], expected["energy"], 1e-10)


@needs_mpiexec
@pytest.mark.parametrize(
    "n_ranks", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 8))]
)
def test_ranks_have_the_results_of_one_process(
    alone: Results, tmp_path: Path, n_ranks: int
) -> None:
    path = tmp_path / "results.npz"
    done = run_ranks(n_ranks, ["-m", "tests.calculators.lammps.worker", str(path)], tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(np.load(path))
    check_single_points(found)
    check_float32(found)
    check_trajectories(found, alone)


@needs_mpiexec
def test_runs_of_the_same_ranks_have_the_same_bits(tmp_path: Path) -> None:
    program = """
from mpi4py import MPI
from mlff_triton.calculators.lammps import couple
from tests.calculators.lammps.systems import TYPES, gathered, small_model, start, water

found = []
for _ in range(2):
    lmp = start(water())
    couple(lmp, small_model(), TYPES, device="cpu")
    lmp.commands_list(["fix move all nve", "timestep 0.0004", "velocity all create 300 7"])
    lmp.command("run 40")
    found.append(gathered(lmp, "x", 3).tobytes())
assert found[0] == found[1]
"""
    done = run_ranks(2, ["-c", program], tmp_path)
    assert done.returncode == 0, done.stderr


CHANGES = """
import numpy as np
from mpi4py import MPI
from ase import Atoms
from mlff_triton.calculators.lammps import couple
from tests.calculators.lammps.systems import TYPES, of_engine, small_model, start, water

world, model, shape = MPI.COMM_WORLD, small_model(), water((4, 3, 3))
lmp = start(shape)

def turn(_caller, step, n_own, *_arrays):
    n_atoms = n_own + lmp.extract_setting("nghost")
    types, tags = (lmp.numpy.extract_atom(name, nelem=n_atoms) for name in ("type", "id"))
    if step == 8:  # oxygen becomes hydrogen on the rank that owns it, and where it is a ghost
        types[tags == 1] = 1

lmp.command("fix turn all external pf/callback 1 1")
lmp.set_fix_external_callback("turn", turn, None)
couple(lmp, model, TYPES, device="cpu", dtype="float64", skin=0.6)
lmp.commands_string(\"""
fix move all nve/noforce
velocity all set 40 20 10
timestep 0.0005
region all block EDGE EDGE EDGE EDGE EDGE EDGE
region most block 0 12 0 9 0 9
fix more all deposit 2 1 9 7 region most near 0.7 vx 40 40 vy 20 20 vz 10 10
fix gone all evaporate 7 1 all 7
\""")
for steps in (6, 7, 8, 9):
    lmp.command(f"run {steps}")
    own = slice(lmp.extract_setting("nlocal"))
    names = "id", "type", "x", "f"
    parts = world.allgather([lmp.numpy.extract_atom(name)[own].copy() for name in names])
    energy = lmp.get_thermo("pe")
    if world.rank == 0:
        tags, types, positions, forces = map(np.concatenate, zip(*parts))
        assert len(np.unique(tags)) == len(tags) == lmp.get_natoms()
        atoms = Atoms(np.array([0, 1, 8])[types], positions, cell=shape.cell, pbc=True)
        expected = of_engine(model, atoms)
        np.testing.assert_allclose(forces, expected["forces"], atol=1e-8)
        np.testing.assert_allclose(energy, expected["energy"], rtol=1e-10)
        print(int(tags.max()), len(tags))
"""


@needs_mpiexec
@pytest.mark.parametrize("n_ranks", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_atoms_come_vanish_migrate_and_change_in_a_run(tmp_path: Path, n_ranks: int) -> None:
    done = run_ranks(n_ranks, ["-c", CHANGES], tmp_path)
    assert done.returncode == 0, done.stderr
    last_id, n_atoms = map(int, done.stdout.split()[-2:])
    assert last_id == 110  # two have come
    assert n_atoms < 108


@needs_mpiexec
def test_the_first_rank_warns_of_unknown_chemistry(tmp_path: Path) -> None:
    """The unknown bond crosses the face between two domains."""
    program = """
from mpi4py import MPI
from ase import Atoms
from mlff_triton.calculators.lammps import couple
from tests.calculators.lammps.systems import start, water

atoms = water((4, 2, 2))
middle = atoms.cell[0, 0] / 2
atoms.cell[0, 0] += 60
middle += 30
atoms += Atoms("O2", [[middle - 0.6, 1, 1], [middle + 0.6, 1, 1]])
lmp = start(atoms)
couple(lmp, "tensornet-gfn2", ["H", "O"], device="cpu")
lmp.command("run 0")
"""
    done = run_ranks(2, ["-W", "always", "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("UnknownChemistryWarning: the training set") == 1
    assert "O bonded to O and O bonded to O" in done.stderr


@needs_mpiexec
def test_a_molecule_that_the_model_gets_wrong_is_known_by_all_of_its_atoms(tmp_path: Path) -> None:
    """Each rank owns one atom of the molecule."""
    program = """
from mpi4py import MPI
from ase import Atoms
from mlff_triton.calculators.lammps import couple
from tests.calculators.lammps.systems import start

lmp = start(Atoms("O2", [[9.4, 5, 5], [10.6, 5, 5]], cell=[20, 10, 10], pbc=True))
couple(lmp, "default", ["H", "O"], device="cpu")
lmp.command("run 0")
assert lmp.extract_setting("nlocal") == 1
"""
    done = run_ranks(2, ["-W", "always", "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the model is known to be wrong for O-O by itself") == 1


@needs_mpiexec
@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "triton-graph"])
def test_ranks_on_gpus_have_the_results_of_the_exact_module(tmp_path: Path, backend: str) -> None:
    """Tensors go from GPU to GPU if each rank has one, and otherwise through the host."""
    results, n_gpus = [], torch.cuda.device_count()
    for n_ranks in (1, 2, 4):
        path = tmp_path / f"{n_ranks}.npz"
        arguments = ["-m", "tests.calculators.lammps.worker", str(path), "cuda", backend]
        done = run_ranks(n_ranks, arguments, tmp_path)
        assert done.returncode == 0, done.stderr
        assert (f"{n_ranks} ranks share" in done.stderr) == (n_ranks > n_gpus)
        results.append(dict(np.load(path)))
        check_single_points(results[-1], 32, tolerance(1))
        check_float32(results[-1], 32)
    for found in results[1:]:
        check_trajectories(found, results[0])


def check_trajectories(found: Results, alone: Results) -> None:
    """Compare trajectories with those of one rank. Some ranks have no atoms, and atoms migrate."""
    n_own = found["empty-float64/n_own"]
    assert n_own.sum() == len(structure("empty"))
    assert n_own.min() == 0
    for name in ("nve", "npt", "flip"):
        assert found[f"{name}/migrated"] > 0
        for key in ("thermo", "positions", "forces", "cells"):
            label = f"{name}/{key}"
            np.testing.assert_allclose(
                found[label], alone[label], rtol=1e-9, atol=1e-9, err_msg=label
            )


# A droplet in a large box, so that the ranks beyond it have no atoms.
UNCERTAIN = """
import sys

import torch
from mpi4py import MPI

from mlff_triton.calculators.lammps import couple
from tests.calculators.lammps.systems import TYPES, small_model, start, water
from tests.support.tensornets import uncertain

droplet = water((2, 2, 1))
droplet.set_cell([40, 30, 30])
model = small_model()
for limit in map(float, sys.argv[1:]):
    torch.manual_seed(5)
    lmp = start(droplet, f"processors {MPI.COMM_WORLD.size} 1 1")
    couple(lmp, uncertain(model, 5, limit), TYPES, device="cpu", dtype="float64")
    lmp.commands_list(["run 0", "run 0"])
"""


@needs_mpiexec
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_one_rank_warns_of_the_atom_of_all_that_is_known_least(tmp_path: Path, n_ranks: int):
    atoms, model = structure("empty"), small_model()
    torch.manual_seed(5)
    calculator = TensorNetCalculator(uncertain(model, 5, 1e6), device="cpu", dtype="float64")
    known = calculator.get_property("uncertainty", atoms)
    limit = float(np.median(known))
    done = run_ranks(n_ranks, ["-c", UNCERTAIN, "1e6", repr(limit)], tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "expects an error" in line]
    worst, above = int(known.argmax()), int((known > limit).sum())
    assert f"on atom {worst + 1} ({atoms.symbols[worst]}), and of {above} atoms more than" in line
