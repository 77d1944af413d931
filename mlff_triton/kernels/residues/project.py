"""Linear maps of residues: their parts of the first maps of edge networks.

    y_pr = x_r W_p + b_p

Source: J. Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
https://doi.org/10.1126/science.add2187.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.numerics.product import add_linear, bias_sum, end_sum, scheme_of
from mlff_triton.kernels.residues.edge_blocks import has_room
from mlff_triton.kernels.residues.types import Projections


@triton.jit
def _project_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    parts_ptr,
    n_residues,
    EARLY_LAUNCH: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    """Write parts [P, n_residues, C]. Grid: (blocks of M residues, P).

    Reads residues x [n_residues, C], weights [P, C, C] or their halves, and biases [P, C].
    """
    wait_for_previous(EARLY_LAUNCH)
    part, columns = tl.program_id(1).to(tl.int64), tl.arange(0, C)
    residue = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    live = (residue < n_residues)[:, None]
    offsets = residue[:, None] * C + columns[None, :]
    x = tl.load(x_ptr + offsets, live, other=0.0).to(ACCUMULATE)  # [M, C]
    acc = bias_sum(bias_ptr + part * C, 0, ACCUMULATE, PRECISION, M, C)
    halves: tl.constexpr = 2 if PRECISION == "fixed_halves" else 1
    acc = add_linear(x, weight_ptr + part * halves * C * C, acc, C, C, 0, 0, PRECISION)
    tl.store(parts_ptr + part * n_residues * C + offsets, end_sum(acc, PRECISION), live)


def project(x: Tensor, projections: Projections) -> tuple[Tensor, ...]:
    """Apply linear maps to residues, without gradients.

    Parameters
    ----------
    x : [R, C]
        Residues; C is a power of two, 16 or more.
    projections : Projections
        P maps.

    Returns
    -------
    tuple of P tensors [R, C]
        Results of the maps.
    """
    n_residues, channels = x.shape
    parts = x.new_empty(len(projections.bias), n_residues, channels)
    is_large = n_residues > 16 * hardware.multiprocessors(x.device) and has_room(x)
    block = 64 if is_large else 16
    with torch.cuda.device_of(x):
        _project_kernel[(triton.cdiv(n_residues, block), len(parts))](
            x,
            *projections,
            parts,
            n_residues,
            PRECISION=scheme_of(projections.weight, x),
            ACCUMULATE=accumulator(x),
            C=channels,
            M=block,
            num_warps=4,
            num_stages=1,
            **early_launch(x),
        )
    return parts.unbind()
