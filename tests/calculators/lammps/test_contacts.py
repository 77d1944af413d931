"""Contacts of atoms, which are searched for only when atoms may have met."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from mlff_triton.calculators._plausibility import contact_limits
from mlff_triton.calculators.lammps.contacts import (
    MOST_CLEARANCE,
    ContactChecks,
    find_clearance,
)
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
    checks, room = ContactChecks(), clearance(WATER)
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
    checks = ContactChecks()
    searches(checks, WATER)
    with pytest.raises(InputError, match=r"NaN or infinite .1 such atoms. in step 1: take a sh"):
        searches(checks, moved(1, [0, value, 0]))


@needs_lammps
def test_all_steps_of_a_cpu_are_checked() -> None:
    """None is a beginning."""
    from mlff_triton.calculators.lammps import couple

    lmp = start(water((1, 1, 2)))
    coupling = couple(lmp, small_model(), ["H", "O"], device="cpu", skin=0.8, dtype="float64")
    lmp.commands_list(["fix move all nve", "timestep 0.0005"])
    with mock.patch.object(coupling._contacts, "search") as search:
        lmp.command("run 3 every 2 NULL")
    assert [call.kwargs["step"] for call in search.call_args_list] == [None, 1, 2, None, 3]


def watched(*, fails: bool, tells: bool) -> Any:
    """Return LAMMPS with two atoms that meet in step 4, in which a GPU fails or tells of it."""
    from mlff_triton.calculators.lammps import couple

    lmp = start(Atoms("H2", [[1, 1, 1], [0, 1, 1]], cell=[9] * 3, pbc=True))
    coupling = couple(lmp, small_model(), ["H", "O"], device="cpu", skin=3.0)
    coupling._is_watched = True
    lmp.commands_list(["fix move all nve/noforce", "timestep 0.0005"])
    step = coupling._part.step

    def step_on_gpu(*args: Any, **options: Any) -> Any:
        if fails and coupling._last_step == 4:
            raise InputError("another error")
        return replace(step(*args, **options), has_contacts=tells)

    coupling._part.step = step_on_gpu
    lmp.command("run 1")
    return lmp


@needs_lammps
@pytest.mark.parametrize("fails", [False, True])
def test_errors_of_contacts_precede_those_of_the_model(*, fails: bool) -> None:
    """A GPU may tell of contacts of ghosts, too, for which another rank looks."""
    lmp = watched(fails=fails, tells=True)
    with pytest.raises(InputError, match=r"only 0\.\S+ Å apart in step 4"):
        lmp.commands_list(["velocity all set 0 0 0", "set atom 2 vx 600", "run 3"])


@needs_lammps
def test_a_gpu_is_asked_for_contacts_after_the_first_step() -> None:
    lmp = watched(fails=False, tells=False)
    lmp.commands_list(["velocity all set 0 0 0", "set atom 2 vx 600", "run 3"])
    with pytest.raises(InputError, match=r"only 0\.\S+ Å apart: check that"):
        lmp.command("run 0")


# Two hydrogen atoms meet in step 4, and two others stay where they are.
MEETING = """
import sys
from functools import partial
from unittest import mock

import numpy as np
from ase import Atoms
from mpi4py import MPI

from mlff_triton.calculators.lammps import couple
from mlff_triton.engine import device_steps
from mlff_triton.kernels.tensornet.reference import operators as plain
from tests.calculators.lammps.systems import TYPES, small_model, start
from tests.support.quick_interpreter import make_quick

middle, backend, device = float(sys.argv[1]), *sys.argv[2:]
if device == "cpu":  # where the interpreter is slow
    device_steps.DeviceSteps = partial(device_steps.DeviceSteps, operators=plain)
    make_quick(setattr)
x = np.mod(middle + np.array([-0.4, 0.4]), 18)
atoms = Atoms("H4", [[x[0], 1, 1], [x[1], 1, 1], [4, 5, 5], [13, 5, 5]], cell=[18, 9, 9], pbc=True)
lmp = start(atoms, "processors * 1 1")
coupling = couple(lmp, small_model(32), TYPES, device=device, backend=backend)
assert coupling._is_watched == (backend != "cpu")
lmp.commands_list(["fix move all nve/noforce", "timestep 0.0005"])
with mock.patch.object(coupling._contacts, "search") as search:
    lmp.command("run 1")
steps = [call.kwargs["step"] for call in search.call_args_list]
assert steps == ([None] if coupling._is_watched else [None, 1])
lmp.commands_list(["velocity all set 0 0 0", "set atom 2 vx -500", "run 9"])
"""


def message(n_ranks: int, middle: float, folder: Path, *options: str) -> str:
    """Return the only message of a run in which atoms meet, given backend and device."""
    done = run_ranks(n_ranks, ["-c", MEETING, str(middle), *options], folder)
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if "rror: " in line]
    return line


@needs_lammps
@needs_mpiexec
@pytest.mark.parametrize(
    ("n_ranks", "middle"),
    [
        (1, 0),  # on a face of the box
        (2, 9),  # on the face between two ranks
        pytest.param(1, 3, marks=pytest.mark.slow),
        pytest.param(2, 3, marks=pytest.mark.slow),
        pytest.param(2, 0, marks=pytest.mark.slow),
    ],
)
def test_kernels_find_the_contacts_of_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_ranks: int, middle: float
) -> None:
    """The message is the same, to the step."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    given = n_ranks, middle, tmp_path
    found, expected = (message(*given, name, "cpu") for name in ("triton", "cpu"))
    assert re.search(r"atoms [12] \(H\) and [12] \(H\) are only 0\.05 Å apart in step 4", found)
    assert found == expected


@needs_lammps
@needs_mpiexec
@pytest.mark.gpu
@pytest.mark.parametrize(("n_ranks", "middle"), [(1, 0), (2, 9)])
@pytest.mark.parametrize("backend", ["triton", "triton-graph"])
def test_gpus_find_them_too(tmp_path: Path, n_ranks: int, middle: float, backend: str) -> None:
    found = message(n_ranks, middle, tmp_path, backend, "cuda")
    assert re.search(r"atoms [12] \(H\) and [12] \(H\) are only 0\.05 Å apart in step 4", found)


def test_dense_atoms_are_refused_without_a_list_of_all_pairs() -> None:
    """There would be 2e8 of them."""
    points = 0.05 * np.indices((30, 30, 30)).reshape(3, -1).T
    numbers, labels = np.ones(len(points), dtype=int), np.arange(len(points))
    with pytest.raises(InputError, match=r"are only 0\.05 Å apart"):
        find_clearance(numbers, points, 9, labels)
