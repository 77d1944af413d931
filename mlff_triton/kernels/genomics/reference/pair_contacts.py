"""Contact maps from pairs of bins, in plain PyTorch.

p_ij <- (p_ij + p_ji) / 2
y_ij = W gelu(s p_ij / rms(p_ij) + t) + b      gelu(x) = x sigmoid(1.702 x)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from mlff_triton.kernels.common.reference.activations import activate
from mlff_triton.kernels.genomics.types import PairContacts


def pair_contacts(
    pair: Tensor, eps: float, contacts: PairContacts, organism: Tensor, dtype: torch.dtype
) -> Tensor:
    """Compute `mlff_triton.kernels.genomics.pair_contacts.pair_contacts`."""
    scale, shift, weight, bias = contacts
    x = (pair + pair.transpose(1, 2)) / 2
    x = rms_norm(x, scale.shape, scale, eps) + shift[organism][:, None, None]
    x = activate(x, "gelu_sigmoid").to(weight.dtype)
    y = torch.einsum("bijc,bct->bijt", x, weight[organism]) + bias[organism][:, None, None]
    return y.to(dtype)
