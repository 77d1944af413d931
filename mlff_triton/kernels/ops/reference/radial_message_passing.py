"""Sums over neighbors with tabulated functions of the distance, in plain PyTorch.

    M_i = f_k(0) y_i + sum_j f_k(d_ij) y_j       with the k of each component

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eq. 11.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import PART_OF_COMPONENT
from mlff_triton.kernels.ops.reference.message_passing import message_passing
from mlff_triton.kernels.ops.reference.radial_factors import radial_factors
from mlff_triton.kernels.types.edges import Knots


def radial_message_passing(
    y: Tensor,
    distance: Tensor,
    table: Tensor,
    own: Tensor,
    knots: Knots,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    """Compute `mlff_triton.kernels.ops.radial_message_passing.radial_message_passing`."""
    factors = radial_factors(distance, table, knots)
    own_factors = own[list(PART_OF_COMPONENT)][:, None]  # [9, 1, F]
    return message_passing(y, factors, row_ptr, senders, reverse) + own_factors * y
