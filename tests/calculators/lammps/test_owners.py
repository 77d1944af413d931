"""Owners of ghosts, while atoms move between ranks, come and vanish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlff_triton.errors import InputError
from tests.calculators.lammps.systems import needs_lammps, needs_mpiexec, run_ranks

pytestmark = needs_lammps

MOVES = """
import numpy as np
from mpi4py import MPI
from mlff_triton.calculators.lammps.owners import Directory

world = MPI.COMM_WORLD
rng = np.random.default_rng(7)  # the same numbers on all ranks
directory = Directory(world)
size, tags = world.size, rng.permutation(3000)[:600] + 1
ranks = rng.integers(0, size - 1, len(tags))  # the last rank begins without atoms
for step in range(12):
    moves = rng.random(len(tags)) < 0.05
    ranks[moves] = rng.integers(0, size, moves.sum())
    if step == 5:  # some vanish
        tags, ranks = tags[40:], ranks[40:]
    if step == 8:  # others come
        tags, ranks = np.append(tags, 3001 + np.arange(40)), np.append(ranks, np.arange(40) % size)
    if step == 10:
        order = rng.permutation(len(tags))
        tags, ranks = tags[order], ranks[order]
    own = [tags[ranks == rank] for rank in range(size)]
    ghosts = rng.choice(tags, (size, 200))[world.rank]
    mine = own[world.rank].astype(np.int32)
    given = np.concatenate([mine, ghosts.astype(np.int32)])
    owners = directory.find_owners(given, len(mine), len(tags))
    for ghost, rank, index in zip(ghosts, *owners, strict=True):
        assert own[rank][index] == ghost, step
"""


@needs_mpiexec
@pytest.mark.parametrize("n_ranks", [2, 5])
def test_owners_are_known_wherever_atoms_go(tmp_path: Path, n_ranks: int) -> None:
    done = run_ranks(n_ranks, ["-c", MOVES], tmp_path)
    assert done.returncode == 0, done.stderr


FEW = """
import numpy as np
from unittest import mock
from mpi4py import MPI
from mlff_triton.calculators.lammps import owners

world = MPI.COMM_WORLD
directory, own = owners.Directory(world), 1 + np.arange(50) + 50 * world.rank
rows = []
def send_rows(comm, sent, *rest):
    rows.append(len(sent))
    return original(comm, sent, *rest)
original = owners.send_rows
with mock.patch.object(owners, "send_rows", send_rows):
    for n_total, forgets in ((100, False), (100, False), (99, False), (99, True)):
        own[:4] = own[[1, 2, 3, 0]]
        if forgets:
            directory.forget()
        directory.find_owners(own, len(own), n_total)
assert rows[::3] == [50, 4, 50, 50], rows
"""


@needs_mpiexec
def test_only_atoms_with_another_index_are_published_again(tmp_path: Path) -> None:
    """All are if the number of atoms has changed, as IDs may have been reused."""
    done = run_ranks(2, ["-c", FEW], tmp_path)
    assert done.returncode == 0, done.stderr


SAME = """
import numpy as np
from mpi4py import MPI
from mlff_triton.calculators.lammps.owners import Directory
from mlff_triton.errors import InputError

world = MPI.COMM_WORLD
own = np.array([[5, 7, 8], [9, 5, 4]], dtype=np.int32)[world.rank]
try:
    Directory(world)._publish(own)
    found = ""
except InputError as error:
    found = str(error)
texts = world.allgather(found)
assert sum("same ID" in text for text in texts) == 1, texts
"""


@needs_mpiexec
def test_an_id_that_atoms_of_two_ranks_have_is_refused(tmp_path: Path) -> None:
    done = run_ranks(2, ["-c", SAME], tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_id_that_two_atoms_have_is_refused() -> None:
    from mpi4py import MPI

    from mlff_triton.calculators.lammps.owners import Directory

    with pytest.raises(InputError, match="same ID"):
        Directory(MPI.COMM_SELF).find_owners(np.array([5, 7, 5, 7]), 3, 3)
