"""Nearest residues, compared with their reference."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.residues.nearest_residues import nearest_residues
from mlff_triton.kernels.residues.reference import nearest_residues as reference
from mlff_triton.testing import assert_close


@pytest.mark.parametrize(("proteins", "length", "count"), [(1, 1, 1), (2, 70, 48), (3, 33, 33)])
def test_neighbors_match_the_reference(proteins, length, count, device):
    positions = 10 * torch.randn(proteins, length, 3)
    mask = torch.ones(proteins, length)
    mask[:, 1 : 1 + (length - count) // 2] = 0  # there are enough others
    rows, distances = nearest_residues(positions.to(device), mask.to(device), count)
    expected = reference.nearest_residues(positions.double(), mask.double(), count)
    known = mask.bool().flatten()
    assert torch.equal(rows.cpu()[known], expected[0][known])
    assert_close(distances.cpu()[known], expected[1][known], 0, torch.float32)


def test_masked_residues_come_last(device):
    positions = torch.arange(4.0, device=device)[:, None].expand(1, 4, 3)
    rows, distances = nearest_residues(positions, torch.tensor([[1.0, 0, 1, 1]], device=device), 3)
    assert rows[0].tolist() == [0, 2, 1]
    assert distances[0, 1:].tolist() == pytest.approx([12**0.5, 27**0.5])


def test_of_equal_distances_the_lower_index_comes_first(device):
    positions = torch.zeros(1, 5, 3, device=device)
    positions[0, :, 0] = torch.tensor([0.0, 1.0, -1.0, 2.0, -2.0])
    rows, _ = nearest_residues(positions, torch.ones(1, 5, device=device), 4)
    assert rows[0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [0, 4])
def test_there_are_as_many_neighbors_as_residues_at_most(count):
    with pytest.raises(InputError, match=f"{count} neighbors of 3"):
        nearest_residues(torch.zeros(1, 3, 3), torch.ones(1, 3), count)
