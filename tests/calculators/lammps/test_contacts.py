"""Contacts of atoms, which are searched for only when atoms may have met."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from mlff_triton.calculators._plausibility import contact_limits
from mlff_triton.calculators.lammps.contacts import MOST_CLEARANCE, ContactChecks, find_clearance
from mlff_triton.errors import InputError, OverlappingAtomsError
from tests.calculators.lammps.systems import (
    needs_lammps,
    needs_mpiexec,
    run_ranks,
    small_model,
    start,
    water,
)

WATER = molecule("H2O")
LABELS = np.array([7, 8, 9])


def clearance(atoms: Atoms, n_own: int | None = None) -> float:
    labels = np.arange(len(atoms)) + 7
    n_own = len(atoms) if n_own is None else n_own
    return find_clearance(atoms.numbers, atoms.positions, n_own, labels)


def moved(index: int, by: Any) -> Atoms:
    atoms = WATER.copy()
    atoms.positions[index] += by
    return atoms


def test_the_clearance_is_that_of_the_closest_pair() -> None:
    """Or less, by the difference of two elements."""
    atoms = water()
    atoms.positions[2] += 0.2 * (atoms.positions[0] - atoms.positions[2])
    limits = contact_limits(atoms.numbers)
    distances = atoms.get_all_distances() - limits[:, None] - limits
    exact = distances[np.triu_indices(len(atoms), 1)].min()
    assert 0 < exact < MOST_CLEARANCE
    assert exact - np.ptp(limits) - 1e-9 < clearance(atoms) < exact + 1e-9
    far = Atoms("H2", [[0, 0, 0], [0, 0, 5]])
    assert clearance(far) == clearance(far[:1]) == MOST_CLEARANCE


def test_large_atoms_elsewhere_leave_a_clearance() -> None:
    """Hydrogen would be in contact with cesium at the distance of a bond."""
    atoms = molecule("H2") + Atoms("Cs", [[9, 0, 0]])
    hydrogen, _, cesium = contact_limits(atoms.numbers)
    distance = atoms.get_distance(0, 1)
    assert hydrogen + cesium > distance
    assert clearance(atoms) == pytest.approx(distance - 2 * hydrogen)
    atoms += Atoms("HCs", [[5, 0, 0], [5, 0, 0.9 * (hydrogen + cesium)]])
    with pytest.raises(InputError, match=r"atoms 1[01] \(..?\) and 1[01] \(..?\) are only"):
        clearance(atoms)


def test_no_pair_is_closer_than_the_clearance() -> None:
    """Large atoms count, even where smaller ones are nearer."""
    atoms = molecule("H2") + Atoms("Cs", [[0, 0, 0]])
    hydrogen, _, cesium = contact_limits(atoms.numbers)
    atoms.positions[2] = atoms.positions[0] + [0, hydrogen + cesium + 0.01, 0]
    assert clearance(atoms) == pytest.approx(0.01)
    rng = np.random.default_rng(5)
    for _ in range(300):
        n_atoms, n_own = rng.integers(2, 40), 1
        numbers = rng.choice([1, 8, 55, 87], n_atoms)
        atoms = Atoms(numbers, rng.uniform(0, 6, (n_atoms, 3)))
        limits = contact_limits(numbers)
        distances = atoms.get_all_distances() + 9 * np.eye(n_atoms)
        exact = (distances - limits[:, None] - limits)[:n_own].min()
        if exact > 0:
            assert clearance(atoms, n_own) <= exact + 1e-9
        else:
            with pytest.raises(InputError, match="apart"):
                clearance(atoms, n_own)


def test_ghosts_count_if_they_are_near() -> None:
    near, far = (Atoms("H2", [[0, 0, 0], [0, 0, z]]) for z in (0.4, 5.0))
    assert clearance(near, 1) == pytest.approx(0.4 - 2 * contact_limits(near.numbers)[0])
    assert clearance(far, 1) == MOST_CLEARANCE


def test_atoms_are_called_by_their_labels() -> None:
    with pytest.raises(InputError, match=r"atoms . \(.\) and . \(.\) are only") as caught:
        clearance(moved(1, 0.9 * (WATER.positions[0] - WATER.positions[1])))
    assert all(name in str(caught.value) for name in ("7 (O)", "8 (H)"))
    with pytest.raises(OverlappingAtomsError, match="atoms 7 and 8 are at the same point"):
        clearance(moved(1, WATER.positions[0] - WATER.positions[1]))
    for value in (np.nan, np.inf):
        with pytest.raises(InputError, match=r"of atom 9 is NaN or infinite .1 such atoms.: check"):
            clearance(moved(2, [0, 0, value]))


def searches(checks: ContactChecks, atoms: Atoms, cell: Any = 0.0) -> bool:
    """Check water at a step, and return True if it took a search."""
    box = np.eye(3) * (9 + cell)
    if not checks.may_exist(atoms.positions, box):
        return False
    checks.search(atoms.numbers, atoms.positions, box, len(atoms), LABELS, step=1)
    return True


def test_a_search_takes_place_when_atoms_may_have_met() -> None:
    checks, room = ContactChecks(limits_time=False), clearance(WATER)
    assert searches(checks, WATER)
    assert not searches(checks, WATER)
    assert not searches(checks, moved(1, [0, 0, 0.49 * room / np.sqrt(3)]))
    assert searches(checks, moved(1, [0, -0.51 * room, 0]))
    assert searches(checks, WATER)
    assert not searches(checks, WATER, cell=0.3 * room)
    assert searches(checks, WATER, cell=0.4 * room)
    checks.forget()
    assert searches(checks, WATER, cell=0.4 * room)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_atoms_that_are_lost_are_noticed(value: float) -> None:
    checks = ContactChecks(limits_time=False)
    searches(checks, WATER)
    with pytest.raises(InputError, match=r"NaN or infinite .1 such atoms. in step 1: take a sh"):
        searches(checks, moved(1, [0, value, 0]))


def test_time_on_a_gpu_is_limited() -> None:
    checks = ContactChecks(limits_time=True)
    with mock.patch("time.monotonic", side_effect=[10.0, 10.5]):  # for half a second
        searches(checks, WATER)
        checks.finish()
    for now, is_affordable in ((20.0, False), (60.4, False), (60.5, True)):
        with mock.patch("time.monotonic", return_value=now):
            assert checks.is_affordable is is_affordable
    assert ContactChecks(limits_time=False).is_affordable


def test_a_gpu_computes_a_step_while_its_atoms_are_checked() -> None:
    checks, steps = ContactChecks(limits_time=True), [None, 7]
    given = WATER.numbers, moved(1, [0, np.nan, 0]).positions, np.eye(3), len(WATER), LABELS
    with pytest.raises(InputError, match="atom 8 is NaN or infinite"):
        checks.search(*given, step=steps[0])  # where a run begins
    checks.search(*given, step=steps[1])
    with pytest.raises(InputError, match=r"atom 8 is NaN or infinite .* in step 7"):
        checks.finish()
    checks.finish()


MEETING = ["velocity all set 0 0 0", "set atom 2 vx 600", "run 3"]


@needs_lammps
@pytest.mark.parametrize("fails", [False, True])
def test_errors_of_contacts_precede_those_of_the_model(*, fails: bool) -> None:
    from mlff_triton.calculators.lammps import couple

    lmp = start(Atoms("H2", [[1, 1, 1], [0, 1, 1]], cell=[9] * 3, pbc=True))
    coupling = couple(lmp, small_model(), ["H", "O"], device="cpu", skin=3.0)
    coupling._contacts = ContactChecks(limits_time=True)
    lmp.commands_list(["fix move all nve/noforce", "timestep 0.0005"])
    step = coupling._part.step

    def step_or_fail(*args: Any, **options: Any) -> Any:
        if fails and coupling._last_step == 4:
            raise InputError("another error")
        return step(*args, **options)

    with mock.patch.object(coupling._part, "step", step_or_fail):
        lmp.command("run 1")
        with pytest.raises(InputError, match=r"only 0\.\S+ Å apart in step 4"):
            lmp.commands_list(MEETING)


RUNS = {
    "run 6": [None, 6],
    "run 4 every 2 NULL": [None, 2, None, 4],
    "minimize 0 1e-3 3 9": [None, 1, 3, 3],
    "minimize 0 1e9 3 9": [None, 1],
}


@needs_lammps
@pytest.mark.parametrize("command", RUNS)
def test_runs_are_checked_at_their_ends_whatever_it_takes(command: str) -> None:
    """None is a beginning. Minimizers compute their last step again."""
    from mlff_triton.calculators.lammps import couple

    lmp = start(water((1, 1, 2)))
    coupling = couple(lmp, small_model(), ["H", "O"], device="cpu", skin=0.8, dtype="float64")
    lmp.commands_list(["fix move all nve", "timestep 0.0005"])
    with (
        mock.patch.object(ContactChecks, "is_affordable", False),
        mock.patch.object(coupling._contacts, "search") as search,
    ):
        lmp.command(command)
    steps = [call.kwargs["step"] for call in search.call_args_list]
    assert steps[0] is None
    assert steps[-1] == RUNS[command][-1]
    assert set(steps) == set(RUNS[command])


UNEVEN = """
from unittest import mock
from mpi4py import MPI
from mlff_triton.calculators.lammps import couple
from mlff_triton.calculators.lammps.contacts import ContactChecks
from tests.calculators.lammps.systems import TYPES, small_model, start, water

rank = MPI.COMM_WORLD.rank
lmp = start(water())
coupling = couple(lmp, small_model(), TYPES, device="cpu")
lmp.commands_list(["fix move all nve", "timestep 0.0005"])
ready = mock.PropertyMock(side_effect=lambda: rank == 0 or coupling._last_step == 3)
with (
    mock.patch.object(ContactChecks, "is_affordable", ready),
    mock.patch.object(coupling._contacts, "search") as search,
):
    lmp.command("run 6")
assert [call.kwargs["step"] for call in search.call_args_list] == [None, 3, 6]
"""


@needs_lammps
@needs_mpiexec
def test_ranks_check_in_the_same_steps(tmp_path: Path) -> None:
    """Each would wait for the others' checks otherwise."""
    done = run_ranks(2, ["-c", UNEVEN], tmp_path)
    assert done.returncode == 0, done.stderr


def test_dense_atoms_are_refused_without_a_list_of_all_pairs() -> None:
    """There would be 2e8 of them."""
    points = 0.05 * np.indices((30, 30, 30)).reshape(3, -1).T
    numbers, labels = np.ones(len(points), dtype=int), np.arange(len(points))
    with pytest.raises(InputError, match=r"are only 0\.05 Å apart"):
        find_clearance(numbers, points, 9, labels)
