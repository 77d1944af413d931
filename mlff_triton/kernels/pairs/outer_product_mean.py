"""Outer product mean: updates of pairs from an alignment.

    a, b = A norm(m), B norm(m)      n_ij = sum_s mask_si mask_sj
    z_ij <- z_ij + O (sum_s mask_si mask_sj a_si x b_sj) / max(n_ij, 1) + o

or, if a number is added to the count,

    z_ij <- z_ij + (O (sum_s mask_si mask_sj a_si x b_sj) + o) / (n_ij + eps)

The sums over sequences are one product of matrices, which a library computes for a few rows of
pairs at a time. The kernel before it normalizes the alignment and writes both factors token by
token. The kernel after it maps the outer products, divides and adds them in place.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 9 of the supplement.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.dense import check_same
from mlff_triton.kernels.common.hardware import has_large_memory
from mlff_triton.kernels.numerics.operands import takes_halves, weight_operands
from mlff_triton.kernels.numerics.product import untruncated
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.pairs.arguments import FLOATS, check_rows
from mlff_triton.kernels.pairs.projections import Projection, project_rows
from mlff_triton.kernels.pairs.row_blocks import add_product, load_rows, store_rows
from mlff_triton.kernels.pairs.types import OuterProductWeights

_ALIGNMENT = 16  # bytes
_MOST_CHANNELS = 256
_FACTORS = (8, 16, 32, 64)
_BYTES = 2**28  # of outer products at a time


@triton.jit
def _outer_product_update_fwd_kernel(
    z_ptr,
    products_ptr,
    counts_ptr,
    weight_ptr,
    bias_ptr,
    first_row,
    rows,
    n,
    EPS: tl.constexpr,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    CHANNELS: tl.constexpr,
    FACTORS: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    M: tl.constexpr,
):
    """Add updates to rows of pairs z [B, n, n, CHANNELS] in place, from ``first_row`` on.

    Reads products [B, rows, FACTORS, n, FACTORS], counts [B, n, n] and weight
    [CHANNELS, FACTORS FACTORS] from `weight_operands`. If EPS is None, counts are at least one.
    Grid: (blocks of M pairs of a row, rows, B).
    """
    row, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    token = tl.program_id(0) * M + tl.arange(0, M)
    factor, channel = tl.arange(0, K), tl.arange(0, C)
    known = token < n
    inside = known[:, None] & (factor < FACTORS)[None, :]
    first = (batch * rows + row) * FACTORS * n
    acc = tl.zeros((M, C), tl.float32)
    for left in range(FACTORS):
        offsets = (first + left * n + token) * FACTORS
        pointers = products_ptr + offsets[:, None] + factor[None, :]
        products = tl.load(pointers, inside, other=0.0)  # [M, K]
        # Beyond FACTORS, the products are zero.
        acc = add_product(
            acc, products, weight_ptr, left * FACTORS, CHANNELS, FACTORS * FACTORS, HALVES
        )
    if HALVES or weight_ptr.dtype.element_ty == tl.float32:
        acc = untruncated(acc, K, LOSS)
    pair = (batch * n + first_row + row) * n + token
    count = tl.load(counts_ptr + pair, known, other=1.0)
    bias = tl.zeros((C,), tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + channel, channel < CHANNELS, other=0.0).to(tl.float32)
    if EPS is None:
        acc = tl.div_rn(acc, tl.maximum(count, 1.0)[:, None]) + bias[None, :]
    else:
        acc = tl.div_rn(acc + bias[None, :], (count + EPS)[:, None])
    acc += load_rows(z_ptr, pair * CHANNELS, known, channel, CHANNELS)
    store_rows(acc, z_ptr, pair * CHANNELS, known, channel, CHANNELS)


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    pairs: int
    warps: int
    stages: int

    @classmethod
    def of(cls, block: int, weight: Tensor) -> Tile:
        """Return block sizes for a block of channels, in the dtype and on the GPU of a weight."""
        stages = 2 if has_large_memory(weight) else 1
        if weight.element_size() > 2:
            return cls(32, 4 if block <= 128 else 8, stages)
        return cls(64, 4 if block <= 128 else 8, stages)


def outer_product_mean_(
    z: Tensor,
    msa: Tensor,
    weights: OuterProductWeights,
    mask: Tensor | None = None,
    *,
    eps: float | None = None,
) -> Tensor:
    """Update pairs by the outer product mean of an alignment in place, without gradients.

    Parameters
    ----------
    z : [B, N, N, P]
        Pairs, contiguous; float32, or of the dtype of the weights. P is at most 256.
    msa : [B, S, N, C]
        Alignment of S sequences with contiguous channels; float32, or of the dtype of the weights.
        C is at most 512.
    weights : OuterProductWeights
        Weights, float16, bfloat16 or float32, with K = 8, 16, 32 or 64. Products have this
        precision, and sums float32. In float16, sums over sequences must not exceed 65504.
    mask : [B, S, N], optional
        Factor of the tokens of all sequences; 1 by default.
    eps : float, optional
        Added to the counts, which also divide the bias, as in Protenix and OpenFold3. By default,
        counts are at least one and the bias is added after the division, as in Boltz.

    Returns
    -------
    [B, N, N, P]
        ``z``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or ``z`` is not contiguous.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> z, msa = torch.randn(1, 7, 7, 32, device="cuda"), torch.randn(1, 5, 7, 16, device="cuda")
    >>> norm = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda"), 1e-5
    >>> left, right = torch.randn(2, 8, 16, device="cuda") / 4
    >>> weights = OuterProductWeights(norm, left, right, torch.randn(32, 64, device="cuda") / 8)
    >>> outer_product_mean_(z, msa, weights).shape
    torch.Size([1, 7, 7, 32])
    """
    _check(z, msa, weights, mask)
    if not z.numel():
        return z
    norm, left, right, out, out_bias = weights
    batches, depth, n, _ = msa.shape
    k, channels = len(left), z.shape[-1]
    elements = _ALIGNMENT // left.element_size()
    padded = triton.cdiv(depth, elements) * elements
    # Both factors are [B, N K, S], with S padded so that all rows are aligned.
    factors = left.new_zeros(2, batches, n, k, padded)
    a, b = (x[..., :depth].permute(0, 3, 1, 2) for x in factors)  # [B, S, N, K]
    maps = [Projection(left, a[..., None, :]), Projection(right, b[..., None, :])]
    if depth:
        project_rows(msa, norm, maps, mask)
    a, b = factors.flatten(2, 3)
    counts = _counts(msa, mask)
    block = block_side(channels)
    tile, halves = Tile.of(block, left), takes_halves(out)
    (operand,) = weight_operands(out, halves=halves)
    step = max(1, _BYTES // (batches * n * k * k * left.element_size()))
    for first in range(0, n, step):
        rows = min(step, n - first)
        products = torch.bmm(a[:, first * k : (first + rows) * k], b.mT)
        with torch.cuda.device_of(z):
            _outer_product_update_fwd_kernel[(triton.cdiv(n, tile.pairs), rows, batches)](
                z,
                products,
                counts,
                operand,
                None if out_bias is None else out_bias.contiguous(),
                first,
                rows,
                n,
                EPS=eps,
                HALVES=halves,
                LOSS=loss_of(out).halves,
                CHANNELS=channels,
                FACTORS=k,
                C=block,
                K=block_side(k),
                M=tile.pairs,
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
    return z


def _counts(msa: Tensor, mask: Tensor | None) -> Tensor:
    """Return the numbers of sequences with both tokens of all pairs, float32 [B, N, N]."""
    batches, depth, n, _ = msa.shape
    if mask is None:
        return torch.full((batches, n, n), float(depth), device=msa.device)
    kept = mask.float()
    return torch.bmm(kept.mT, kept)


def _check(z: Tensor, msa: Tensor, weights: OuterProductWeights, mask: Tensor | None) -> None:
    """Check that the arguments of `outer_product_mean_` fit together."""
    check_shape("msa", msa, ("B", "S", "N", "C"))
    batches, depth, n, channels = msa.shape
    check_shape("z", z, (batches, n, n, "P"))
    pairs = z.shape[-1]
    if pairs > _MOST_CHANNELS:
        raise InputError(f"the pairs have {pairs} channels: use at most {_MOST_CHANNELS}")
    _, left, right, out, out_bias = weights
    check_same(FLOATS, {"left": left, "right": right, "out": out})
    check_rows("z", z, out)
    check_device(z, msa)
    check_shape("left", left, ("K", channels))
    check_shape("right", right, left.shape)
    if len(left) not in _FACTORS:
        raise InputError(f"the factors have {len(left)} channels: use 8, 16, 32 or 64")
    check_shape("out", out, (pairs, len(left) ** 2))
    if out_bias is not None:
        check_device(z, out_bias)
        check_shape("out_bias", out_bias, (pairs,))
    if mask is not None:
        check_device(z, mask)
        check_shape("mask", mask, (batches, depth, n))
