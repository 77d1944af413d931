"""Parts of packed 3x3 tensors times one factor per atom, channel and part, in plain PyTorch.

    I -> s_1 I      A -> s_2 A      S -> s_3 S

as in TensorNet's embedding: G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import PART_OF_COMPONENT


def scaled_tensors(x: Tensor, scales: Tensor) -> Tensor:
    """Compute `mlff_triton.kernels.ops.scaled_tensors.scaled_tensors`."""
    parts = scales.unbind(1)
    return x * torch.stack([parts[part] for part in PART_OF_COMPONENT])
