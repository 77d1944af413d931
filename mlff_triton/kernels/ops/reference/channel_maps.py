"""Linear maps of the channels of packed 3x3 tensors, in plain PyTorch.

y_c = x_c W_l^T, with one weight for each part l of the tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import PART_OF_COMPONENT


def channel_maps(x: Tensor, weights: Tensor, precision: str | None = None) -> Tensor:
    """Compute `mlff_triton.kernels.ops.channel_maps.channel_maps`, as a batched product."""
    del precision
    parts = weights.unbind()
    return torch.bmm(x, torch.stack([parts[part] for part in PART_OF_COMPONENT]).mT)
