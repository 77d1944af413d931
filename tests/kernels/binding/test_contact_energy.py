"""Energies of contacts, compared with their reference in float64."""

from __future__ import annotations

import math

import pytest
import torch

from mlff_triton.kernels.binding.contact_energy import contact_energy
from mlff_triton.kernels.binding.reference import contact_energy as reference
from mlff_triton.kernels.binding.types import Layout, Readout
from mlff_triton.testing import assert_close
from tests.kernels.binding import cases
from tests.kernels.binding.cases import to_device


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("threshold", [0.0, 6.0, 100.0])
def test_contact_energy(given, threshold, device):
    tokens, readout = given.tokens, cases.readout(given.channels)
    arguments = given.layout, given.max_lengths, threshold, readout
    expected = reference.contact_energy(tokens.embedded, tokens.positions, *arguments)
    found = contact_energy(
        cases.split(tokens.embedded).to(device),
        *to_device((tokens.positions, *arguments), device),
    )
    assert found.shape == (len(given.kept),)
    assert_close(found.cpu(), expected, 0, torch.float32, floor=1.0)
    assert (found != 0).any() == (threshold > 0)


@pytest.mark.parametrize(("threshold", "count"), [(5.0, 0), (5.000001, 1), (13.0, 1), (14.0, 2)])
def test_contacts_are_closer_than_the_threshold(threshold, count, device):
    positions = torch.tensor([[1.0, 0, 0], [4.0, 4, 0], [1.0, 5, 12]], device=device)
    row_ptr = torch.tensor([0, 3], dtype=torch.int32, device=device)
    layout = Layout(torch.arange(3).int().to(device), row_ptr, row_ptr[1:] // 3)
    one = cases.Linear(torch.zeros(16, 16).double(), torch.ones(16).double())
    readout = to_device(Readout(one, one, one), device)
    x = cases.split(torch.zeros(3, 16)).to(device)
    found = contact_energy(x, positions, layout, (1, 2), threshold, readout)
    assert_close(found.cpu(), torch.tensor([count * 16 / (1 + math.exp(-1))]), 0, torch.float32)
