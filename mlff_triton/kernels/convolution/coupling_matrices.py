"""Coupling matrices of edges, from their spherical harmonics.

    C_e[a, m] = f sum_b w3j[a, b, m] s_e[b]

for each path and each channel of its harmonics s, with Wigner 3j symbols and the factor f of the
path. Each element is a sum over the components of one irrep of the harmonics.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import COMPUTE_DTYPES
from mlff_triton.kernels.convolution.clebsch_gordan import coupling
from mlff_triton.kernels.convolution.types import TensorProduct, columns_of

_EDGES, _COLUMNS = 16, 64  # per program
_SUMMED_EDGES = 32  # per program that sums over elements of the matrices


class _Terms(NamedTuple):
    """Terms of each element of coupling matrices.

    Attributes
    ----------
    first : int32 [P]
        First column of the harmonics in the sum.
    factors : [P, width]
        Factors of consecutive columns.
    dense : [P, harmonics]
        Factors of all columns.
    """

    first: Tensor
    factors: Tensor
    dense: Tensor


@cache
def _terms_of(product: TensorProduct, dtype: torch.dtype, device: torch.device) -> _Terms:
    with torch.inference_mode(mode=False):
        dense = coupling(product)
        n_columns = dense.shape[1]
        used = (dense != 0).int()
        first = used.argmax(1)
        last = torch.where(used.any(1), n_columns - 1 - used.flip(1).argmax(1), first)
        width = int((last - first).max()) + 1
        columns = first[:, None] + torch.arange(width)
        padded = torch.cat([dense, dense.new_zeros(len(dense), width)], 1)
        factors = padded.gather(1, columns)
        return _Terms(first.int().to(device), factors.to(device, dtype), dense.to(device, dtype))


@triton.jit
def _coupling_fwd_kernel(
    sh_ptr,
    first_ptr,
    factors_ptr,
    out_ptr,
    n_edges,
    n_harmonics,
    n_matrix,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write coupling matrices [n_edges, n_matrix]. Grid: (tiles of M edges, blocks of COLUMNS)."""
    edge = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < n_matrix
    live = (edge < n_edges)[:, None] & inside[None, :]
    first = tl.load(first_ptr + column, inside, other=0)

    total = tl.zeros((M, COLUMNS), out_ptr.dtype.element_ty)
    for k in tl.static_range(WIDTH):
        factor = tl.load(factors_ptr + column * WIDTH + k, inside, other=0.0)
        harmonic = (first + k)[None, :]
        sh = tl.load(
            sh_ptr + edge[:, None] * n_harmonics + harmonic,
            live & (harmonic < n_harmonics),
            other=0.0,
        )  # [M, COLUMNS]
        total += sh.to(total.dtype) * factor[None, :]
    tl.store(out_ptr + edge[:, None] * n_matrix + column[None, :], total, live)


def coupling_matrices(edge_sh: Tensor, product: TensorProduct) -> Tensor:
    """Return the coupling matrices of edges [E, P], in the dtype of sums."""
    n_edges, n_harmonics = edge_sh.shape
    dtype = COMPUTE_DTYPES[edge_sh.dtype]
    out = edge_sh.new_empty(n_edges, product.n_matrix, dtype=dtype)
    if out.numel():
        terms = _terms_of(product, dtype, edge_sh.device)
        with torch.cuda.device_of(out):
            _coupling_fwd_kernel[
                (triton.cdiv(n_edges, _EDGES), triton.cdiv(product.n_matrix, _COLUMNS))
            ](
                edge_sh.contiguous(),
                terms.first,
                terms.factors,
                out,
                n_edges,
                n_harmonics,
                product.n_matrix,
                WIDTH=terms.factors.shape[1],
                M=_EDGES,
                COLUMNS=_COLUMNS,
                num_warps=4,
            )
    return out


@triton.jit
def _harmonics_gradient_kernel(
    matrix_ptr,
    dense_ptr,
    out_ptr,
    n_edges,
    n_harmonics,
    n_matrix,
    M: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write gradients of harmonics [n_edges, n_harmonics]. Grid: (tiles of M edges,)."""
    edge = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    live, inside = edge < n_edges, column < n_harmonics

    total = tl.zeros((M, COLUMNS), out_ptr.dtype.element_ty)
    for p in range(n_matrix):
        factor = tl.load(dense_ptr + p * n_harmonics + column, inside, other=0.0)
        gradient = tl.load(matrix_ptr + edge * n_matrix + p, live, other=0.0)
        total += gradient[:, None] * factor[None, :]
    mask = live[:, None] & inside[None, :]
    tl.store(out_ptr + edge[:, None] * n_harmonics + column[None, :], total, mask)


def harmonics_gradient(of_matrices: Tensor, product: TensorProduct) -> Tensor:
    """Return the gradients of harmonics [E, harmonics], from those of coupling matrices [E, P]."""
    n_edges, n_matrix = of_matrices.shape
    n_harmonics = columns_of(product.harmonics)
    out = of_matrices.new_empty(n_edges, n_harmonics)
    if out.numel():
        dense = _terms_of(product, out.dtype, out.device).dense
        with torch.cuda.device_of(out):
            _harmonics_gradient_kernel[(triton.cdiv(n_edges, _SUMMED_EDGES),)](
                of_matrices,
                dense,
                out,
                n_edges,
                n_harmonics,
                n_matrix,
                M=_SUMMED_EDGES,
                COLUMNS=triton.next_power_of_2(n_harmonics),
                num_warps=4,
            )
    return out
