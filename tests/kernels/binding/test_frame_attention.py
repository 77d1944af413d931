"""Attention in frames, compared with its reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.kernels.binding.frame_attention import frame_attention
from mlff_triton.kernels.binding.reference import frame_attention as reference
from mlff_triton.testing import assert_close
from tests.kernels.binding import cases
from tests.kernels.binding.cases import split_tokens, to_device


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("size", [16, 32, 64])
def test_frame_attention(given, size, device):
    heads = given.channels // size
    if not heads:
        pytest.skip("there are fewer channels")
    length = given.kept.shape[1]
    expected = reference.frame_attention(
        given.tokens, given.layout.row_ptr, length, given.directions, heads
    )
    found = frame_attention(
        split_tokens(given.tokens, device),
        given.layout.row_ptr.to(device),
        length,
        to_device(given.directions, device),
        heads,
    )
    n_rows = int(given.layout.row_ptr[-1])
    assert_close(cases.joined(found)[:n_rows].cpu(), expected[:n_rows], 0, torch.float32)


def test_frames_are_all_signs():
    signs = reference.frame_signs(torch.ones(1))
    assert len(set(map(tuple, signs.tolist()))) == 8
    assert (signs.abs() == 1).all()
