"""Attention of atoms within windows of their sequence.

    s_ij = scale q_i . k_j + bias_ij      out_i = sum_j softmax_j(s_ij) v_j

A window has Q queries and T keys, with the same center unless first keys are given. Windows of
queries follow each other; windows of keys overlap and may reach beyond both ends of the sequence.
The sum is over the kept keys of the query's window. Samples share biases.

Each program owns a window and a head of one sample; their scores fit on chip. It reads the keys of
its window from the sequence, so overlaps need no copies. Products in float32 are those of float16
halves: see `mlff_triton.kernels.numerics.split`.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 7 of the supplement.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.attention import exponentials, level_of, mean_of_values
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.dense import check_same
from mlff_triton.kernels.numerics.exponential import LOG2_E
from mlff_triton.kernels.numerics.product import product, split, split_along, untruncated
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.pairs.arguments import FLOATS

_UNIT = tl.constexpr(2.0**13)  # of weights that are split
_LARGEST_DIM = 64
_SIDES = (16, 32, 64, 128)


@triton.jit
def _window_attention_fwd_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    bias_ptr,
    mask_ptr,
    starts_ptr,
    out_ptr,
    shape,
    q_strides,
    k_strides,
    v_strides,
    out_strides,
    SCALE: tl.constexpr,
    DIM: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    LOSS: tl.constexpr,
):
    """Write out [B, R, windows M, H, DIM].

    Reads q, k and v of this shape, bias [B, windows, H, M, N], mask [B, R, windows M] or None, and
    the first keys of windows, starts [windows], or None. Grid: (B x R x windows x H,), with H
    innermost.
    """
    rows, windows, heads = shape
    program = tl.program_id(0)
    head = program % heads
    window = program // heads % windows
    row = (program // (heads * windows) % rows).to(tl.int64)
    batch = (program // (heads * windows * rows)).to(tl.int64)
    length = windows * M
    query, dim = window * M + tl.arange(0, M), tl.arange(0, D)
    start = window * M - (N - M) // 2
    if starts_ptr is not None:
        start = tl.load(starts_ptr + window)
    key = start + tl.arange(0, N)
    exists = (key >= 0) & (key < length)
    inside = (dim < DIM)[None, :]
    kept = exists
    if mask_ptr is not None:
        kept = tl.load(mask_ptr + (batch * rows + row) * length + key, exists, other=0) != 0
    place = ((batch * windows + window) * heads + head) * M + tl.arange(0, M)
    biases = tl.load(bias_ptr + place[:, None] * N + tl.arange(0, N)[None, :]).to(tl.float32)

    q_ptr += batch * q_strides[0] + row * q_strides[1] + head * q_strides[3]
    q = tl.load(q_ptr + query.to(tl.int64)[:, None] * q_strides[2] + dim[None, :], inside, other=0)
    k_ptr += batch * k_strides[0] + row * k_strides[1] + head * k_strides[3]
    k_pointers = k_ptr + key.to(tl.int64)[:, None] * k_strides[2] + dim[None, :]
    k = tl.load(k_pointers, exists[:, None] & inside, other=0)
    v_ptr += batch * v_strides[0] + row * v_strides[1] + head * v_strides[3]
    v_pointers = v_ptr + key.to(tl.int64)[:, None] * v_strides[2] + dim[None, :]
    v = tl.load(v_pointers, exists[:, None] & inside, other=0)

    EXACT: tl.constexpr = q.dtype == tl.float32
    q = (q.to(tl.float32) * SCALE).to(q.dtype)
    if EXACT:
        q_high, q_low, q_unit = split_along(q, 1)
        k_high, k_low, k_unit = split_along(k, 1)
        scores = product((q_high, q_low), (k_high.T, k_low.T), "halves")  # [M, N]
        scores = untruncated(scores, D, LOSS) * q_unit * k_unit.T + biases
    else:
        scores = tl.dot(q, k.T, biases)
    scores = tl.where(kept[None, :], scores, float("-inf"))
    UNIT: tl.constexpr = 1.0 if EXACT else LOG2_E
    level = level_of(tl.max(scores, 1)) * UNIT
    weights = exponentials(scores * UNIT - level[:, None], EXACT)
    total = tl.sum(weights, 1)
    if EXACT:
        v_high, v_low, v_unit = split_along(v, 0)  # columns share the sum
        parts = split(weights * _UNIT, "halves")
        out = untruncated(product(parts, (v_high, v_low), "halves"), N, LOSS) * v_unit
        total *= _UNIT
    else:
        out = tl.dot(weights.to(v.dtype), v)
    out = mean_of_values(out, total, EXACT)
    out_ptr += batch * out_strides[0] + row * out_strides[1] + head * out_strides[3]
    pointers = out_ptr + query.to(tl.int64)[:, None] * out_strides[2] + dim[None, :]
    tl.store(pointers, out.to(out_ptr.dtype.element_ty), inside)


def window_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Compute attention within windows, without gradients.

    Parameters
    ----------
    q, k, v : [B, R, W Q, H, D]
        Queries, keys and values of R samples; float16, bfloat16 or float32. The vectors of a head
        must be contiguous. D is at most 64.
    bias : [B, W, H, Q, T]
        Biases of the queries and keys of each window, finite, of a floating dtype. Q and T are 16,
        32, 64 or 128, and T is at least Q.
    mask : [B, R, W Q], optional
        Nonzero for atoms that are kept as keys; all by default. Windows without kept keys give
        zeros. Values of masked keys must be finite.
    scale : float, optional
        Factor of the queries; 1 / sqrt(D) by default.
    starts : int32 [W], optional
        First key of each window, which may be before the first atom; by default, keys have the
        center of their queries.

    Returns
    -------
    [B, R, W Q, H, D]
        Attention outputs, of the dtype of ``q``, contiguous.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> q, k, v = torch.randn(3, 1, 5, 96, 4, 32, device="cuda")  # 5 samples of 96 atoms
    >>> window_attention(q, k, v, torch.randn(1, 3, 4, 32, 128, device="cuda")).shape
    torch.Size([1, 5, 96, 4, 32])
    """
    _check(q, k, v, bias, mask, starts)
    batches, rows, _, heads, dim = q.shape
    windows, _, queries, keys = bias.shape[1:]
    out = q.new_empty(q.shape)
    if not out.numel():
        return out
    with torch.cuda.device_of(q):
        _window_attention_fwd_kernel[(batches * rows * windows * heads,)](
            q,
            k,
            v,
            bias.contiguous(),
            None if mask is None else mask.contiguous(),
            starts,
            out,
            (rows, windows, heads),
            q.stride()[:-1],
            k.stride()[:-1],
            v.stride()[:-1],
            out.stride()[:-1],
            SCALE=dim**-0.5 if scale is None else float(scale),
            DIM=dim,
            D=block_side(dim),
            M=queries,
            N=keys,
            LOSS=loss_of(q).halves,
            num_warps=4,
        )
    return out


def _check(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None, starts: Tensor | None
) -> None:
    """Check that the arguments of `window_attention` fit together."""
    check_device(*(x for x in (q, k, v, bias, mask, starts) if x is not None))
    check_shape("q", q, ("B", "R", "W Q", "H", "D"))
    check_shape("k", k, q.shape)
    check_shape("v", v, q.shape)
    batches, rows, length, heads, dim = q.shape
    check_shape("bias", bias, (batches, "W", heads, "Q", "T"))
    windows, _, queries, keys = bias.shape[1:]
    if queries not in _SIDES or keys not in _SIDES or keys < queries:
        raise InputError(f"windows have {queries} queries and {keys} keys: use 16, 32, 64 or 128")
    if windows * queries != length:
        raise InputError(f"{windows} windows of {queries} do not have {length} atoms")
    if mask is not None:
        check_shape("mask", mask, (batches, rows, length))
    if starts is not None:
        check_shape("starts", starts, (windows,))
    check_same(FLOATS, {"q": q, "k": k, "v": v})
    if bias.dtype not in FLOATS:
        raise InputError(f"bias is {bias.dtype}: use float16, bfloat16 or float32")
    if dim > _LARGEST_DIM:
        raise InputError(f"the heads have {dim} channels: use at most {_LARGEST_DIM}")
    if any(x.stride(-1) != 1 and dim > 1 for x in (q, k, v)):
        raise InputError("the vectors of a head must be contiguous")
