"""Principal axes of complexes, compared with their reference."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.binding.principal_axes import principal_axes
from mlff_triton.kernels.binding.reference import principal_axes as reference
from mlff_triton.testing import assert_close
from tests.kernels.binding.cases import Complexes


def test_principal_axes(given, dtype, device):
    positions = given.positions.to(dtype)
    center, axes = reference.principal_axes(positions, given.kept)
    found_center, found = principal_axes(positions.to(device), given.kept.to(device))
    assert_close(found_center.cpu(), center, 0)
    overlaps = axes.mT @ found.cpu()
    assert_close(overlaps.abs(), torch.eye(3).expand_as(overlaps), 0)


def test_axes_turn_with_the_complex(device):
    given = Complexes(2, 3, 9, 16)
    turn = torch.linalg.qr(torch.randn(3, 3).double())[0]
    given.positions[~given.kept] = 0.0
    turned = given.positions @ turn.T + 3.0
    turned[~given.kept] = 0.0
    kept = given.kept.to(device)
    _, axes = principal_axes(given.positions.to(device), kept)
    _, found = principal_axes(turned.to(device), kept)
    overlaps = (turn @ axes.cpu()).mT @ found.cpu()
    assert_close(overlaps.abs(), torch.eye(3).expand_as(overlaps), 0)


def test_wrong_shapes_are_refused(device):
    given = Complexes(1, 1, 1, 16)
    with pytest.raises(InputError, match="positions has the shape"):
        principal_axes(given.positions[..., :2].to(device), given.kept.to(device))
