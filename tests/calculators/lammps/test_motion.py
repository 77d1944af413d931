"""Distances that atoms may move before LAMMPS exchanges ghosts again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlff_triton.calculators.lammps.motion import MotionCheck
from mlff_triton.errors import SimulationError
from tests.calculators.lammps.systems import needs_lammps, needs_mpiexec, run_ranks

SKIN = 1.0


class Drifting:
    """The part of a LAMMPS instance that a check uses; all atoms move by some Å per step."""

    def __init__(self, speed: float, **settings: int) -> None:
        self.settings = {"neigh_every": 1, "neigh_delay": 0, "neigh_dist_check": 1} | settings
        self.settings["neigh_ago"] = -1
        self.speed, self.n_reads = speed, 0
        self.positions = np.random.default_rng(1).normal(size=(63, 3))
        self.numpy = SimpleNamespace(extract_atom=self._extract_atom)

    def extract_setting(self, name: str) -> int:
        return self.settings[name]

    def _extract_atom(self, _name: str, nelem: int) -> np.ndarray:
        self.n_reads += 1
        return self.positions[:nelem]

    def step(self, *, exchanges: bool) -> None:
        self.positions[:, 1] += self.speed
        self.settings["neigh_ago"] = 0 if exchanges else self.settings["neigh_ago"] + 1


def run(
    check: MotionCheck, lmp: Any, steps: int, interval: int, *, begins: bool = False
) -> list[int]:
    """Exchange ghosts at some interval, and return the steps in which positions are compared."""
    compared = []
    for step in range(steps):
        lmp.step(exchanges=step % interval == 0)
        check.update(63, begins=begins and step == 0)
        before = lmp.n_reads
        check.check()
        if lmp.n_reads > before:
            compared.append(step)
    return compared


def test_atoms_are_compared_where_they_have_moved_farthest() -> None:
    lmp = Drifting(0.05)
    check = MotionCheck(lmp, SKIN)
    whole_interval = list(range(1, 10))
    assert run(check, lmp, 32, 10) == [*whole_interval, 19, 29]
    assert run(check, lmp, 10, 10) == whole_interval  # as the last one had two steps


def test_atoms_are_compared_in_each_step_where_a_run_begins() -> None:
    """A longer skin takes effect there, so LAMMPS exchanges ghosts too late from then on."""
    lmp = Drifting(0.01)
    check = MotionCheck(lmp, SKIN)
    run(check, lmp, 80, 40)
    assert run(check, lmp, 30, 10, begins=True) == [*range(1, 10), 19, 29]
    run(check, lmp, 80, 40)
    lmp.speed = 0.06
    with pytest.raises(SimulationError, match=r"moved by 0\.54 Å"):
        run(check, lmp, 30, 30, begins=True)


@pytest.mark.parametrize(
    "settings", [{"neigh_every": 2}, {"neigh_delay": 5}, {"neigh_dist_check": 0}]
)
def test_atoms_are_compared_in_each_step_if_lammps_does_not(settings: dict[str, int]) -> None:
    lmp = Drifting(0.05, **settings)
    expected = [step for step in range(30) if step % 10]
    assert run(MotionCheck(lmp, SKIN), lmp, 30, 10) == expected


@pytest.mark.parametrize("settings", [{}, {"neigh_dist_check": 0}])
def test_atoms_that_move_too_far_are_noticed_at_once(settings: dict[str, int]) -> None:
    lmp = Drifting(0.05, **settings)
    check = MotionCheck(lmp, SKIN)
    run(check, lmp, 30, 10)
    with pytest.raises(SimulationError, match=r"moved by 0\.55 Å .* which cover 0\.5 Å"):
        run(check, lmp, 30, 30)
    assert lmp.settings["neigh_ago"] == 11


def test_one_atom_is_enough_and_the_diagonal_counts() -> None:
    lmp = Drifting(0.0)
    check = MotionCheck(lmp, SKIN)
    run(check, lmp, 1, 1)
    for distance, is_refused in ((0.49, False), (0.51, True)):
        lmp.positions[7] = check.at_exchange[7] + distance / np.sqrt(3)
        lmp.step(exchanges=False)
        check.update(63, begins=False)
        if is_refused:
            with pytest.raises(SimulationError, match=r"moved by 0\.51"):
                check.check()
        else:
            check.check()


SKIN_CHANGED = """
from mpi4py import MPI
from mlff_triton.calculators.lammps import couple
from tests.calculators.lammps.systems import TYPES, small_model, start, water

lmp = start(water())
couple(lmp, small_model(), TYPES, device="cpu", skin=0.8)
lmp.commands_string(\"""
fix move all nve/noforce
timestep 0.001
velocity all set 10 0 0
run 39
print READY
neighbor 2.0 bin
velocity all set 30 0 0
run 20
\""")
"""


@needs_lammps
@needs_mpiexec
def test_a_longer_skin_after_the_coupling_ends_all_ranks(tmp_path: Path) -> None:
    done = run_ranks(2, ["-c", SKIN_CHANGED], tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "an atom moved by 0.42 Å since LAMMPS exchanged ghosts" in done.stderr
