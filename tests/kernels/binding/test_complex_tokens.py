"""Tokens of complexes, compared with their reference in float64."""

from __future__ import annotations

import torch

from mlff_triton.kernels.binding.complex_tokens import complex_tokens
from mlff_triton.kernels.binding.reference import complex_tokens as reference
from mlff_triton.kernels.binding.reference import principal_axes as axes_reference
from mlff_triton.testing import assert_close
from tests.kernels.binding import cases
from tests.kernels.binding.cases import to_device


def test_complex_tokens(given, device):
    centers, axes = axes_reference.principal_axes(given.positions, given.kept)
    arguments = given.positions, given.kinds, given.layout
    rows = given.groups, given.kind_rows
    expected = reference.complex_tokens(*arguments, centers, axes, *rows)
    found = complex_tokens(
        *to_device(arguments, device), centers.to(device), axes.to(device), *to_device(rows, device)
    )
    n_rows = int(given.layout.row_ptr[-1])
    coordinates = found.coordinates[:, :n_rows].cpu()
    assert_close(coordinates, expected.coordinates[:, :n_rows], 0, torch.float32)
    keys, values = (cases.joined(part) for part in (found.keys, found.values))
    found = found._replace(keys=keys, values=values)
    for name in ("positions", "embedded", "queries", "keys", "values"):
        actual = getattr(found, name)[:n_rows].cpu()
        assert_close(actual, getattr(expected, name)[:n_rows], 0, torch.float32)
    assert found.embedded[n_rows:].isnan().all()  # poisoned, and not written
