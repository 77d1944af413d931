"""Sums of consecutive rows, in plain PyTorch: ``out_b = sum_m x_m`` for ``m`` in segment ``b``."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_sum(x: Tensor, row_ptr: Tensor, accumulate: str | None = None) -> Tensor:
    """Compute `mlff_triton.kernels.ops.segment_sum.segment_sum`."""
    segments = torch.arange(len(row_ptr) - 1, device=x.device)
    segment = segments.repeat_interleave(row_ptr.diff(), output_size=len(x))
    x = x.double() if accumulate == "float64" else x
    return x.new_zeros(len(segments), *x.shape[1:]).index_add(0, segment, x)
