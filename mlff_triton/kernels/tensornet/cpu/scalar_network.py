"""Network from the norms of tensors to factors of their parts.

Arguments and results are those of `mlff_triton.kernels.tensornet.reference.scalar_network`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.activations import activate_rows, activate_rows_backward
from mlff_triton.kernels.common.cpu.arrays import as_array
from mlff_triton.kernels.common.cpu.linear import map_rows
from mlff_triton.kernels.common.cpu.rows import as_rows, normalize_rows, normalize_rows_backward
from mlff_triton.kernels.numerics.split import SplitWeight


def scalar_network(
    norm: Tensor,
    gain: Tensor,
    shift: Tensor,
    weight1: SplitWeight,
    bias1: Tensor,
    weight2: SplitWeight,
    bias2: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor]:
    """Compute hidden values [N, 2 F] and factors [N, 3, F], both before their activation."""
    rows = normalize_rows(as_array(norm), gain, shift)
    hidden = map_rows(rows, weight1, bias1)
    scales = map_rows(activate_rows(hidden, activation), weight2, bias2)
    return torch.from_numpy(hidden), torch.from_numpy(scales.reshape(len(scales), 3, norm.shape[1]))


def scalar_network_backward(
    grad: Tensor,
    norm: Tensor,
    gain: Tensor,
    weight1: SplitWeight,
    weight2: SplitWeight,
    hidden: Tensor,
    activation: str,
) -> Tensor:
    """Compute the gradients [N, F] of the norms."""
    given = map_rows(as_rows(as_array(grad)), weight2)
    inner = map_rows(activate_rows_backward(given, as_array(hidden), activation), weight1)
    return torch.from_numpy(normalize_rows_backward(inner, as_array(norm), gain))
