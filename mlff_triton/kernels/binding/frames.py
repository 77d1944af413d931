"""Coordinates of tokens in the eight frames, inside kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from mlff_triton.kernels.binding.types import FRAMES

N_FRAMES = tl.constexpr(FRAMES)


@triton.jit
def signed(x, frame, axis: tl.constexpr):
    """Return x [M], negated in frames [M] that reverse an axis."""
    return tl.where((frame >> axis) & 1 == 1, -x, x)


@triton.jit
def load_coordinate(coordinates_ptr, token, frame, axis: tl.constexpr, n_tokens):
    """Load the coordinate of tokens [M] along an axis in frames [M].

    Reads coordinates [3, n_tokens].
    """
    return signed(tl.load(coordinates_ptr + axis * n_tokens + token), frame, axis)
