"""Contact maps from pairs of bins.

    p_ij <- (p_ij + p_ji) / 2
    y_ij = W gelu(s p_ij / rms(p_ij) + t) + b      gelu(x) = x sigmoid(1.702 x)

t, W and b depend on the organism.

Source: Ž. Avsec et al., "Advancing regulatory variant effect prediction with AlphaGenome",
https://doi.org/10.1038/s41586-025-10014-0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import gelu_sigmoid
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.genomics.pair_attention_inputs import inverse_rms
from mlff_triton.kernels.genomics.types import PairContacts

_ROWS, _WARPS = 64, 4


@triton.jit
def _pair_contacts_fwd_kernel(
    pair_ptr,
    scale_ptr,
    shift_ptr,
    weight_ptr,
    bias_ptr,
    organism_ptr,
    out_ptr,
    n_bins,
    EPS: tl.constexpr,
    TRACKS: tl.constexpr,
    C: tl.constexpr,
    T: tl.constexpr,
    M: tl.constexpr,
):
    """Write out [B, n_bins, n_bins, TRACKS]. Grid: (blocks of M pairs, B)."""
    pair = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    batch = tl.program_id(1).to(tl.int64)
    n_pairs = n_bins * n_bins
    known = (pair < n_pairs)[:, None]
    column, track = tl.arange(0, C), tl.arange(0, T)
    inside = track < TRACKS
    pair_ptr += batch * n_pairs * C
    opposite = pair % n_bins * n_bins + pair // n_bins
    organism = tl.load(organism_ptr + batch).to(tl.int64)
    x = tl.load(pair_ptr + pair[:, None] * C + column[None, :], known, other=0.0)
    x += tl.load(pair_ptr + opposite[:, None] * C + column[None, :], known, other=0.0)
    x *= 0.5
    scale = tl.load(scale_ptr + column)
    shift = tl.load(shift_ptr + organism * C + column)
    x = gelu_sigmoid(x * inverse_rms(x, EPS) * scale[None, :] + shift[None, :])
    weight_ptr += organism * C * TRACKS
    weight = tl.load(
        weight_ptr + column[:, None] * TRACKS + track[None, :], inside[None, :], other=0.0
    )  # [C, T]
    y = tl.dot(x.to(weight.dtype), weight)
    y += tl.load(bias_ptr + organism * TRACKS + track, inside, other=0.0)[None, :]
    out_ptr += batch * n_pairs * TRACKS
    tl.store(
        out_ptr + pair[:, None] * TRACKS + track[None, :],
        y.to(out_ptr.dtype.element_ty),
        known & inside[None, :],
    )


def pair_contacts(
    pair: Tensor, eps: float, contacts: PairContacts, organism: Tensor, dtype: torch.dtype
) -> Tensor:
    """Compute contact maps from pairs, without gradients.

    Parameters
    ----------
    pair : float32 [B, P, P, C]
        Pairs. C is a power of two, 16 or more.
    eps : float
        Added to the mean square.
    contacts : PairContacts
        Weights.
    organism : int64 [B]
        Organisms, read on the device.
    dtype : torch.dtype
        Dtype of the result.

    Returns
    -------
    [B, P, P, T]
        Contact maps.
    """
    batch, n_bins, _, channels = pair.shape
    tracks = contacts.weight.shape[2]
    out = pair.new_empty(batch, n_bins, n_bins, tracks, dtype=dtype)
    with torch.cuda.device_of(pair):
        _pair_contacts_fwd_kernel[(triton.cdiv(n_bins * n_bins, _ROWS), batch)](
            *(pair, *contacts, organism, out),
            n_bins,
            EPS=eps,
            TRACKS=tracks,
            C=channels,
            T=block_side(tracks),
            M=_ROWS,
            num_warps=_WARPS,
        )
    return out
