"""Owners of ghosts, while atoms move between ranks, come and vanish."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from mlff_triton.errors import InputError
from tests.calculators.lammps.systems import needs_lammps, needs_mpiexec, run_ranks

pytestmark = needs_lammps

# Each check is a function of a communicator. All run in the same processes, as these take long to
# start; the name of each that passes is printed.
CHECKS = """
from unittest import mock

import numpy as np
from mpi4py import MPI

from mlff_triton.calculators.lammps import owners
from mlff_triton.errors import InputError

def moves(world):
    rng = np.random.default_rng(7)  # the same numbers on all ranks
    directory = owners.Directory(world)
    size, tags = world.size, rng.permutation(3000)[:600] + 1
    ranks = rng.integers(0, size - 1, len(tags))  # the last rank begins without atoms
    for step in range(12):
        moves = rng.random(len(tags)) < 0.05
        ranks[moves] = rng.integers(0, size, moves.sum())
        if step == 5:  # some vanish
            tags, ranks = tags[40:], ranks[40:]
        if step == 8:  # others come
            tags = np.append(tags, 3001 + np.arange(40))
            ranks = np.append(ranks, np.arange(40) % size)
        if step == 10:
            order = rng.permutation(len(tags))
            tags, ranks = tags[order], ranks[order]
        own = [tags[ranks == rank] for rank in range(size)]
        ghosts = rng.choice(tags, (size, 200))[world.rank]
        mine = own[world.rank].astype(np.int32)
        given = np.concatenate([mine, ghosts.astype(np.int32)])
        found = directory.find_owners(given, len(mine), len(tags))
        for ghost, rank, index in zip(ghosts, *found, strict=True):
            assert own[rank][index] == ghost, step

def few(world):
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

def same(world):
    own = np.array([[5, 7, 8], [9, 5, 4]], dtype=np.int32)[world.rank]
    try:
        owners.Directory(world)._publish(own)
        found = ""
    except InputError as error:
        found = str(error)
    texts = world.allgather(found)
    assert sum("same ID" in text for text in texts) == 1, texts

for check, size in ((moves, 2), (few, 2), (same, 2), (moves, 5)):
    some = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank < size)
    if MPI.COMM_WORLD.rank < size:
        check(some)
        some.barrier()
    if MPI.COMM_WORLD.rank == 0:
        print(check.__name__, size, flush=True)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Run all checks; the first one that fails ends the run."""
    return run_ranks(5, ["-m", "mpi4py", "-c", CHECKS], tmp_path_factory.mktemp("ranks"))


def check_passed(name: str, ranks: subprocess.CompletedProcess[str]) -> None:
    """Assert that ranks have passed a check."""
    assert name in ranks.stdout.splitlines(), ranks.stderr


@needs_mpiexec
@pytest.mark.parametrize("n_ranks", [2, 5])
def test_owners_are_known_wherever_atoms_go(
    ranks: subprocess.CompletedProcess[str], n_ranks: int
) -> None:
    check_passed(f"moves {n_ranks}", ranks)


@needs_mpiexec
def test_only_atoms_with_another_index_are_published_again(
    ranks: subprocess.CompletedProcess[str],
) -> None:
    """All are if the number of atoms has changed, as IDs may have been reused."""
    check_passed("few 2", ranks)


@needs_mpiexec
def test_an_id_that_atoms_of_two_ranks_have_is_refused(
    ranks: subprocess.CompletedProcess[str],
) -> None:
    check_passed("same 2", ranks)


@needs_mpiexec
def test_ranks_end_as_they_should(ranks: subprocess.CompletedProcess[str]) -> None:
    assert ranks.returncode == 0, ranks.stderr


def test_an_id_that_two_atoms_have_is_refused() -> None:
    from mpi4py import MPI

    from mlff_triton.calculators.lammps.owners import Directory

    with pytest.raises(InputError, match="same ID"):
        Directory(MPI.COMM_SELF).find_owners(np.array([5, 7, 5, 7]), 3, 3)
