"""Initial tensors of atoms from their elements and neighbors, in plain PyTorch.

    X_i = v_1(0) 1 + sum_j v_1 1 + v_2 A(u_ij) + v_3 (u_ij u_ij^T - 1/3)
    v_k = (P_i + Q_j) f_k(d_ij)

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, eqs. 5-8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.ops.reference.edge_tensors import edge_tensors
from mlff_triton.kernels.ops.reference.radial_factors import radial_factors
from mlff_triton.kernels.types.edges import Knots


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
    """Compute `mlff_triton.kernels.ops.radial_embedding.radial_embedding`."""
    del reverse  # autograd scatters instead
    atoms = torch.arange(len(species), device=species.device)
    receivers = atoms.repeat_interleave(row_ptr.diff(), output_size=len(senders))
    pairs = receiver[species[receivers]] + sender[species[senders]]
    distance = torch.linalg.vector_norm(vectors, dim=1)
    factors = radial_factors(distance, table, knots) * pairs[:, None]
    x = edge_tensors(vectors / distance[:, None], factors, row_ptr)
    identity = x[:1] + (receiver + sender)[species] * own
    return torch.cat([identity, x[1:]])
