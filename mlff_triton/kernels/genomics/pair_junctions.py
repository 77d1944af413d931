"""Reads of splice junctions, which are pairs of a donor and an acceptor, in all tissues.

    u_tk = rotate(s_t x_k + o_t)      reads_dat = softplus(r u_td . w_ta)

The products of rotated sites are left to a library of matrix products. One kernel prepares their
operands, and another turns the products into reads, with tissues in the last axis.

Source: Ž. Avsec et al., "Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import softplus_relative
from mlff_triton.kernels.transformer.rotation import rotate_pairs

_SITES, _COLUMNS = 32, 128  # per program that rotates
_PAIRS, _TISSUES = 64, 64  # per program that writes reads


@triton.jit
def _rotated_sites_kernel(
    x_ptr,
    scale_ptr,
    shift_ptr,
    cos_ptr,
    sin_ptr,
    organism_ptr,
    out_ptr,
    n_sites,
    n_tissues,
    C,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Write out [B, n_tissues, n_sites, C].

    Reads x [B, n_sites, C], scale and shift [O, n_tissues, C], and angles [B, n_sites, C / 2].
    Grid: (blocks of M sites times blocks of N columns, n_tissues, B).
    """
    n_blocks = tl.cdiv(C, N)
    site = tl.program_id(0) // n_blocks * M + tl.arange(0, M)
    column = tl.program_id(0) % n_blocks * N + tl.arange(0, N)
    pair = tl.program_id(0) % n_blocks * (N // 2) + tl.arange(0, N // 2)
    tissue, batch = tl.program_id(1), tl.program_id(2).to(tl.int64)
    organism = tl.load(organism_ptr + batch).to(tl.int64)
    inside = column < C
    mask = (site < n_sites)[:, None] & inside[None, :]
    angle = (batch * n_sites + site)[:, None] * (C // 2) + pair[None, :]
    angle_mask = (site < n_sites)[:, None] & (pair < C // 2)[None, :]
    row = (organism * n_tissues + tissue) * C + column
    x = tl.load(x_ptr + (batch * n_sites + site)[:, None] * C + column[None, :], mask, other=0.0)
    scale = tl.load(scale_ptr + row, inside, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + row, inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + angle, angle_mask, other=1.0)
    sin = tl.load(sin_ptr + angle, angle_mask, other=0.0)
    x = rotate_pairs(x.to(tl.float32) * scale[None, :] + shift[None, :], cos, sin, M, N)
    out_ptr += (batch * n_tissues + tissue) * n_sites * C
    pointers = out_ptr + site[:, None] * C + column[None, :]
    tl.store(pointers, x.to(out_ptr.dtype.element_ty), mask)


@triton.jit
def _junction_reads_kernel(
    products_ptr,
    donor_ptr,
    acceptor_ptr,
    mask_ptr,
    organism_ptr,
    out_ptr,
    n_sites,
    n_tissues,
    sites_stride,
    stride,
    FACTOR: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Write rows of out [B, n_sites, n_sites, .], which are ``stride`` elements apart.

    Reads products [B, n_tissues, n_sites, n_sites], positions of donors and acceptors [B, n_sites]
    with a stride between batches, and the mask [O, n_tissues]. Grid: (blocks of M pairs, blocks of
    N tissues, B).
    """
    pair = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    tissue = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    batch = tl.program_id(2).to(tl.int64)
    n_pairs = n_sites * n_sites
    organism = tl.load(organism_ptr + batch).to(tl.int64)
    known, served = pair < n_pairs, tissue < n_tissues
    inside = served[:, None] & known[None, :]
    products_ptr += batch * n_tissues * n_pairs
    x = tl.load(products_ptr + tissue[:, None] * n_pairs + pair[None, :], inside, other=0.0)
    donor = tl.load(donor_ptr + batch * sites_stride + pair // n_sites, known, other=-1)
    acceptor = tl.load(acceptor_ptr + batch * sites_stride + pair % n_sites, known, other=-1)
    served &= tl.load(mask_ptr + organism * n_tissues + tissue, served, other=0) != 0
    valid = served[:, None] & ((donor >= 0) & (acceptor >= 0))[None, :]
    reads = tl.where(valid, softplus_relative(FACTOR * x.to(tl.float32)), 0.0)
    out_ptr += batch * n_pairs * stride
    pointers = out_ptr + pair[:, None] * stride + tissue[None, :]
    tl.store(pointers, reads.T.to(out_ptr.dtype.element_ty), inside.T)


def rotated_sites(
    x: Tensor, scale: Tensor, shift: Tensor, cos: Tensor, sin: Tensor, organism: Tensor
) -> Tensor:
    """Scale sites for each tissue and rotate their pairs of columns, without gradients.

    Parameters
    ----------
    x : [B, K, H]
        Sites.
    scale, shift : [O, T, H]
        Factors and shifts of each organism and tissue.
    cos, sin : float32 [B, K, H / 2]
        Cosine and sine of the angle of each site and pair of columns.
    organism : int64 [B]
        Organisms, read on the device.

    Returns
    -------
    [B, T, K, H]
        Rotated sites, of the dtype of ``x``.
    """
    n_batches, n_sites, channels = x.shape
    n_tissues = scale.shape[1]
    out = x.new_empty(n_batches, n_tissues, n_sites, channels)
    blocks = triton.cdiv(n_sites, _SITES) * triton.cdiv(channels, _COLUMNS)
    given = (t.contiguous() for t in (x, scale, shift, cos, sin, organism))
    with torch.cuda.device_of(x):
        _rotated_sites_kernel[(blocks, n_tissues, n_batches)](
            *given, out, n_sites, n_tissues, channels, M=_SITES, N=_COLUMNS, num_warps=4
        )
    return out


def junction_reads(
    products: Tensor,
    factor: float,
    sites: Tensor,
    mask: Tensor,
    organism: Tensor,
    out: Tensor,
) -> None:
    """Write the reads of the junctions of one strand, without gradients.

    Parameters
    ----------
    products : [B, T, K, K]
        Products of donors and acceptors, contiguous.
    factor : float
        Factor r of the products, which may exceed the range of their dtype.
    sites : int64 [B, 2, K]
        Positions of donors and acceptors, contiguous in the last axis; negative ones are missing.
    mask : bool [O, T]
        Tissues of each organism.
    organism : int64 [B]
        Organisms, read on the device.
    out : [B, K, K, T]
        Buffer for the reads, contiguous except for the stride of its rows. Reads of missing sites
        and tissues are zero.
    """
    n_batches, n_tissues, n_sites, _ = products.shape
    grid = triton.cdiv(n_sites * n_sites, _PAIRS), triton.cdiv(n_tissues, _TISSUES), n_batches
    with torch.cuda.device_of(products):
        _junction_reads_kernel[grid](
            *(products, sites[:, 0], sites[:, 1], mask, organism, out),
            n_sites,
            n_tissues,
            sites.stride(0),
            out.stride(2),
            FACTOR=factor,
            M=_PAIRS,
            N=_TISSUES,
            num_warps=4,
        )
