from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.neighbors import shells as operator
from mlff_triton.kernels.neighbors.reference.neighbor_list import build_rows
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix
from mlff_triton.testing import random_cluster

RADIUS, CAPACITY = 2.0, 40
SIZES = [(40, 3, 2), (63, 1, 1), (63, 20, 3), (40, 0, 2), (9, 9, 2)]  # atoms, own, layers
N_PADDING = 30


def matrix_of(n_atoms: int) -> NeighborMatrix:
    """Return a neighbor matrix of atoms at random, followed by padding without edges."""
    positions = np.concatenate(
        [random_cluster(n_atoms).positions, 1e3 + 9.0 * np.arange(N_PADDING)[:, None] * np.ones(3)]
    )
    n_rows = len(positions)
    given = torch.tensor(positions), torch.eye(3).double()[None], torch.zeros(1, 3).bool()
    order = torch.randperm(n_rows).int()
    rows = build_rows(*given, torch.zeros(n_rows).long(), RADIUS, CAPACITY, order)
    assert rows.needed <= CAPACITY
    return rows


def on(rows: NeighborMatrix, device: str) -> NeighborMatrix:
    return NeighborMatrix(*(getattr(rows, f.name).to(device) for f in fields(rows)))


def senders_of(rows: NeighborMatrix) -> dict[int, list[int]]:
    """Return the neighbors of each atom in the order of its row, in the user's numbering."""
    order, begin, count = rows.order.tolist(), rows.begin.tolist(), rows.count.tolist()
    flat = rows.senders.flatten().tolist()
    return {
        order[row]: [order[j] for j in flat[begin[row] : begin[row] + count[row]]]
        for row in range(len(order))
    }


def hops_of(neighbors: dict[int, list[int]], n_atoms: int, n_own: int, n_layers: int) -> list[int]:
    """Return the hops of each atom in the user's order."""
    hops = [0] * n_own + [n_layers + 1] * (n_atoms - n_own) + [n_layers + 2] * N_PADDING
    for h in range(n_layers):
        for atom, others in neighbors.items():
            if hops[atom] == n_layers + 1 and any(hops[j] == h for j in others):
                hops[atom] = h + 1
    return hops


def count(rows: NeighborMatrix, n_atoms: int, n_own: int, n_layers: int) -> tuple[Tensor, Tensor]:
    numbers = (rows.order.new_tensor([n]) for n in (n_own, n_atoms))
    return operator.count_hops(rows, *numbers, n_layers)


@pytest.mark.parametrize(("n_atoms", "n_own", "n_layers"), SIZES)
def test_hops(n_atoms, n_own, n_layers, device):
    rows = matrix_of(n_atoms)
    hops, counts = count(on(rows, device), n_atoms, n_own, n_layers)
    expected = hops_of(senders_of(rows), n_atoms, n_own, n_layers)
    assert hops[rows.rank.long().to(device)].tolist() == expected
    assert counts.tolist() == np.bincount(expected, minlength=n_layers + 3).tolist()


@pytest.mark.parametrize("reserve", [0, 2])
@pytest.mark.parametrize(("n_atoms", "n_own", "n_layers"), SIZES)
def test_sorted_atoms(n_atoms, n_own, n_layers, reserve, device):
    rows = on(matrix_of(n_atoms), device)
    hops, counts = count(rows, n_atoms, n_own, n_layers)
    sizes = counts[: n_layers + 1] + reserve
    out = operator.renumbered(rows)
    operator.sort_by_hops(rows, hops, counts, sizes, out)
    assert int(out.needed) == int(rows.needed)
    assert senders_of(out) == senders_of(rows)
    order = out.order.long()
    assert torch.equal(out.rank[order], torch.arange(len(order)).int().to(device))
    before = rows.rank[order]  # which ascends among atoms with as many hops
    assert torch.equal(out.begin, before * CAPACITY)
    of_atom = hops[rows.rank.long()].tolist()
    start = 0
    for h, (n, size) in enumerate(zip(counts.tolist(), sizes.tolist(), strict=False)):
        shell = order[start : start + size].tolist()
        start += size
        real = [atom for atom in shell if atom < n_atoms]
        assert len(real) == n
        assert {of_atom[atom] for atom in real} <= {h}
        ranks = [int(rows.rank[atom]) for atom in shell]
        assert ranks == sorted(ranks)


@pytest.mark.parametrize("lacking", [0, 1, 2, "padding"])
def test_shells_that_do_not_fit_are_reported(lacking, device):
    """There are no edges, which could lead to atoms that a layer has not computed."""
    rows = on(matrix_of(40), device)
    hops, counts = count(rows, 40, 3, 2)
    sizes = counts[:3].clone()
    if lacking == "padding":
        sizes += N_PADDING // 3 + 1
    else:
        sizes[lacking] -= 1
    out = operator.renumbered(rows)
    operator.sort_by_hops(rows, hops, counts, sizes, out)
    assert int(out.needed) == operator.UNFIT > CAPACITY
    assert sorted(out.order.tolist()) == list(range(len(out.order)))
    assert not out.count.any()


def test_rows_that_are_too_short_are_reported(device):
    rows = on(matrix_of(40), device)
    hops, counts = count(rows, 40, 3, 2)
    rows.needed.fill_(CAPACITY + 1)
    out = operator.renumbered(rows)
    operator.sort_by_hops(rows, hops, counts, counts[:3], out)
    assert int(out.needed) == CAPACITY + 1
    assert not out.count.any()


def test_gives_the_same_bits_again(device):
    rows, results = on(matrix_of(40), device), []
    for _ in range(2):
        hops, counts = count(rows, 40, 3, 2)
        out = operator.renumbered(rows)
        operator.sort_by_hops(rows, hops, counts, counts[:3] + 3, out)
        results.append(out)
    first, second = results
    for field in fields(first):
        assert torch.equal(getattr(first, field.name), getattr(second, field.name))
