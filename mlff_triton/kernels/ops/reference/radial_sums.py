"""Sums over neighbors with tabulated radial functions, in plain PyTorch.

    M_i = f_k(0) y_i + sum_j f_k(d_ij) y_j       with the k of each component
    X_i = v_1(0) 1 + sum_j v_1 1 + v_2 A(u_ij) + v_3 (u_ij u_ij^T - 1/3)
    v_k = (P_i + Q_j) f_k(d_ij)

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eqs. 5-8 and 11.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import PART_OF_COMPONENT
from mlff_triton.kernels.ops.reference.edge_tensors import edge_tensors
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
    """As `mlff_triton.kernels.ops.radial_sums.radial_message_passing`."""
    factors = radial_factors(distance, table, knots)
    own_factors = own[list(PART_OF_COMPONENT)][:, None]  # [9, 1, F]
    return message_passing(y, factors, row_ptr, senders, reverse) + own_factors * y


def radial_embedding(
    vectors: Tensor,
    species: Tensor,
    receiver: Tensor,
    sender: Tensor,
    table: Tensor,
    own: Tensor,
    knots: Knots,
    row_ptr: Tensor,
    senders: Tensor,
    reverse: Tensor,
) -> Tensor:
    """As `mlff_triton.kernels.ops.radial_sums.radial_embedding`."""
    del reverse  # autograd needs none
    atoms = torch.arange(len(species), device=species.device)
    receivers = atoms.repeat_interleave(row_ptr.diff(), output_size=len(senders))
    pairs = receiver[species[receivers]] + sender[species[senders]]
    distance = torch.linalg.vector_norm(vectors, dim=1)
    factors = radial_factors(distance, table, knots) * pairs[:, None]
    x = edge_tensors(vectors / distance[:, None], factors, row_ptr)
    identity = x[:1] + (receiver + sender)[species] * own
    return torch.cat([identity, x[1:]])
