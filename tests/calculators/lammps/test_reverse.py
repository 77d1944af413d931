"""Reverse communication within one process; `test_ranks` covers several."""

from __future__ import annotations

import numpy as np
import pytest

from tests.calculators.lammps.systems import needs_lammps

pytestmark = needs_lammps


@pytest.mark.parametrize("width", [3, 9])
@pytest.mark.parametrize(("n_own", "n_ghosts"), [(63, 500), (1, 26), (20, 0), (0, 0)])
def test_values_of_ghosts_are_added_to_their_atoms(rng, n_own: int, n_ghosts: int, width: int):
    from mpi4py import MPI

    from mlff_triton.calculators.lammps.owners import Directory
    from mlff_triton.calculators.lammps.reverse import ReverseCommunication

    own = rng.permutation(10 * n_own + 1)[:n_own].astype(np.int32) + 1
    tags = np.concatenate([own, rng.choice(own, n_ghosts) if n_own else own])
    values = rng.normal(size=(len(tags), width))
    owners = Directory(MPI.COMM_SELF).find_owners(tags, n_own, n_own)
    reverse = ReverseCommunication(MPI.COMM_SELF, owners, n_own)
    expected = np.array([values[tags == tag].sum(axis=0) for tag in own]).reshape(n_own, width)
    sums = np.full((n_own, width), np.nan)
    reverse.add(values, sums)
    np.testing.assert_allclose(sums, expected, atol=1e-12)
    assert reverse.n_copies.tolist() == [(tags == tag).sum() - 1 for tag in own]
