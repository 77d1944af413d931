"""The network in frames, compared with its reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.binding.frame_network import frame_network
from mlff_triton.kernels.binding.reference import frame_network as reference
from mlff_triton.testing import assert_close
from tests.kernels.binding import cases
from tests.kernels.binding.cases import split_tokens, to_device


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("hidden", [1, 3])
def test_frame_network(given, hidden, device):
    network = cases.network(given.channels, hidden * given.channels)
    arguments = given.layout.row_ptr[-1:], given.directions, network
    expected = reference.frame_network(given.tokens, given.attended, *arguments)
    found = frame_network(
        split_tokens(given.tokens, device),
        cases.split(given.attended).to(device),
        *to_device(arguments, device),
    )
    n_rows = int(given.layout.row_ptr[-1])
    assert_close(cases.joined(found)[:n_rows].cpu(), expected[:n_rows], 0, torch.float32)
