"""TensorNet2 in LAMMPS: the results of one process, whatever the decomposition."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mlff_triton.calculators.lammps import couple
from mlff_triton.calculators.lammps.start import check_mesh
from mlff_triton.errors import BackendError, InputError
from mlff_triton.testing import tolerance
from tests.calculators.lammps.systems import (
    TYPES,
    charged,
    needs_lammps,
    needs_mpiexec,
    of_engine,
    run_ranks,
    start,
    water,
)

pytestmark = [
    needs_lammps,
    pytest.mark.filterwarnings("ignore:the cell has the charge"),
    pytest.mark.filterwarnings("ignore:each cell of the slab has the charge"),
]

Results = dict[str, np.ndarray]
RUNS = [
    # ranks, backend; four have neighbors as two and three do
    pytest.param(2, "cpu", marks=pytest.mark.slow),
    pytest.param(3, "cpu", marks=pytest.mark.slow),
    (4, "cpu"),
    pytest.param(8, "cpu", marks=pytest.mark.slow),
    pytest.param(3, "torch", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def alone() -> Results:
    """Return the results of one process."""
    from tests.calculators.lammps.charged_worker import all_results

    return all_results("cpu")


def check_single_points(found: Results, device: str = "cpu", limit: float = 1e-10) -> None:
    """Compare single points with the exact module, without tables."""
    from tests.calculators.lammps.charged_worker import CHARGE, structures

    for name, (atoms, model) in structures(device).items():
        for key, value in of_engine(model, atoms, charge=CHARGE).items():
            actual, label = found[f"{name}-float64/{key}"], f"{name}, {key}"
            np.testing.assert_allclose(actual, value, limit, limit, err_msg=label)


def test_one_process_has_the_results_of_the_exact_module(alone: Results) -> None:
    check_single_points(alone)


@pytest.mark.parametrize("name", ["cubic", "tilted", "mesh, tilted"])
def test_energy_is_conserved(alone: Results, name: str) -> None:
    potential, total = alone[f"{name}/thermo"].T
    assert np.ptp(total) < 0.01 * np.ptp(potential)


@needs_mpiexec
@pytest.mark.parametrize(("n_ranks", "backend"), RUNS)
def test_ranks_have_the_results_of_one_process(
    alone: Results, tmp_path: Path, n_ranks: int, backend: str
) -> None:
    path, worker = tmp_path / "results.npz", "tests.calculators.lammps.charged_worker"
    done = run_ranks(n_ranks, ["-m", worker, str(path), backend], tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(np.load(path))
    check_single_points(found)
    for label, value in alone.items():
        if label.endswith(("n_own", "n_far", "migrated")):
            continue
        limit = 1e-6 if "float32" in label else 1e-10
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[label], value, limit, limit * scale, err_msg=label)
    faces = np.linspace(0, 40, n_ranks + 1)
    is_between = (faces[:-1] >= 10) & (faces[1:] <= 30)
    for name in ("droplets", "open", "mesh, droplets"):  # ranks in the middle have no atoms
        n_own = found[f"{name}-float64/n_own"]
        assert n_own[0] > 0
        assert n_own[1:].sum() > 0
        assert not n_own[is_between].any()
    assert min(value for label, value in found.items() if label.endswith("/migrated")) > 0
    assert found["long-float64/n_far"] > 0


@needs_mpiexec
@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "triton-graph"])
def test_ranks_on_gpus_have_the_results_of_the_exact_module(tmp_path: Path, backend: str) -> None:
    """Charges go from GPU to GPU if each rank has one, and otherwise through the host."""
    results = []
    for n_ranks in (1, 2, 4):
        path, worker = tmp_path / f"{n_ranks}.npz", "tests.calculators.lammps.charged_worker"
        done = run_ranks(n_ranks, ["-m", worker, str(path), backend, "cuda"], tmp_path)
        assert done.returncode == 0, done.stderr
        results.append(dict(np.load(path)))
        check_single_points(results[-1], "cuda", tolerance(1))
    for found in results[1:]:
        for name in ("cubic", "tilted"):
            for key in ("thermo", "positions", "forces"):
                label = f"{name}/{key}"
                one = results[0][label]
                np.testing.assert_allclose(found[label], one, 1e-9, 1e-9, err_msg=label)


def test_boxes_without_a_coulomb_energy_are_refused() -> None:
    for cutoff, message in ((None, "so it cannot be periodic"), (5.0, "twice the Coulomb cutoff")):
        lmp = start(water())
        couple(lmp, charged(cutoff), TYPES, device="cpu")
        with pytest.raises(InputError, match=message):
            lmp.command("run 0")


@needs_mpiexec
def test_ranks_refuse_such_a_box_together(tmp_path: Path) -> None:
    program = """
from mpi4py import MPI
from mlff_triton.calculators.lammps import couple
from mlff_triton.calculators.lammps.start import check_mesh
from tests.calculators.lammps.systems import TYPES, charged, start, water

lmp = start(water())
couple(lmp, charged(5.0), TYPES, device="cpu")
lmp.command("run 0")
"""
    done = run_ranks(2, ["-c", program], tmp_path)
    assert done.returncode != 0
    assert done.stderr.count("less than twice the Coulomb cutoff") == 1


@needs_mpiexec
def test_the_first_rank_warns_of_a_charged_cell(tmp_path: Path) -> None:
    program = """
from mpi4py import MPI
from mlff_triton.calculators.lammps import couple
from mlff_triton.calculators.lammps.start import check_mesh
from tests.calculators.lammps.systems import TYPES, charged, start, water

lmp = start(water())
couple(lmp, charged(4.6, pme_error=1e-2), TYPES, device="cpu", charge=1)
lmp.command("run 1")
"""
    done = run_ranks(2, ["-W", "always", "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ChargedCellWarning: the cell has the charge +1 e") == 1


@pytest.mark.parametrize("boundary", ["p f f", "f f f"])
def test_meshes_need_two_periodic_directions(boundary: str) -> None:
    lmp = start(water(), f"boundary {boundary}")
    couple(lmp, charged(4.6, pme_error=1e-2), TYPES, device="cpu")
    with pytest.raises(InputError, match="particle-mesh Ewald, which needs"):
        lmp.command("run 0")


def test_meshes_of_ranks_on_gpus_are_refused() -> None:
    def check(device: str, n_ranks: int) -> None:
        check_mesh(SimpleNamespace(uses_mesh=True, device=torch.device(device)), n_ranks)

    check("cuda", 1)
    check("cpu", 2)
    with pytest.raises(BackendError, match='tested on CPUs only: use device="cpu", a single rank'):
        check("cuda", 2)


def test_the_exact_module_is_refused() -> None:
    with pytest.raises(BackendError, match='use device="cpu" with backend="cpu" or "torch"'):
        couple(start(water()), charged(), TYPES, device="cpu", backend="exact")
    assert couple(start(water()), charged(), TYPES, device="cpu").engine.backend == "cpu"
