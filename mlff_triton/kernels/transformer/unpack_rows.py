"""Unpacking of packed rows to padded batches, with an optional shift and normalization."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_integers, check_shape
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES, accumulator, check_dense
from mlff_triton.kernels.common.early_launch import allow_next, early_launch, wait_for_previous
from mlff_triton.kernels.transformer.row_blocks import (
    ceil_div,
    check_channels,
    check_optional,
    contiguous,
    normalize_rows,
    row_blocks,
)
from mlff_triton.kernels.types.norm import Norm


@triton.jit(do_not_specialize=["n_tokens"])
def _unpack_rows_fwd_kernel(
    x_ptr,
    row_of_ptr,
    shift_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    n_tokens,
    channels,
    eps: tl.float64,
    ACCUMULATE: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write out [n_tokens, channels] from rows x [T, channels] and row indices [n_tokens].

    Shift, weight and bias are [channels]. Grid: (blocks of ROWS tokens,).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, CHANNELS)
    inside = channel < channels
    row = tl.load(row_of_ptr + token, token < n_tokens, other=-1).to(tl.int64)

    x = tl.load(
        x_ptr + row[:, None] * channels + channel[None, :],
        (row >= 0)[:, None] & inside[None, :],
        other=0.0,
    ).to(ACCUMULATE)  # [ROWS, CHANNELS]
    if shift_ptr is not None:
        x += tl.load(shift_ptr + channel, inside, other=0.0).to(ACCUMULATE)[None, :]
    if weight_ptr is not None:
        x = normalize_rows(x, weight_ptr, bias_ptr, channel, channels, eps)
    x = tl.where((row >= 0)[:, None], x, 0.0)

    tl.store(
        out_ptr + token[:, None] * channels + channel[None, :],
        x.to(out_ptr.dtype.element_ty),
        (token < n_tokens)[:, None] & inside[None, :],
    )


def unpack_rows(
    x: Tensor,
    row_of: Tensor,
    shape: tuple[int, int],
    *,
    shift: Tensor | None = None,
    norm: Norm | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Unpack rows to a padded batch with zeros for padding, without gradients.

    Parameters
    ----------
    x : [T, C]
        Rows of at most 16384 channels; float16, bfloat16, float32 or float64. Half precisions are
        added and normalized in float32.
    row_of : int32 or int64 [B L]
        Row of each token, -1 for padding, as in `PackedRows`. Its values are not checked.
    shape : (int, int)
        B and L.
    shift : [C], optional
        Vector added to every row, of any of these dtypes.
    norm : (weight [C], bias [C] or None, eps), optional
        Layer normalization after the shift.
    dtype : torch.dtype, optional
        Dtype of the result, one of the above; that of ``x`` by default.

    Returns
    -------
    [B, L, C]
        Batch, with zeros for padding.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> rows = torch.tensor([[1.0], [2.0]], device="cuda")
    >>> row_of = torch.tensor([1, -1, -1, 0], device="cuda")
    >>> unpack_rows(rows, row_of, (2, 2)).tolist()
    [[[2.0], [0.0]], [[0.0], [1.0]]]
    """
    weight, bias, eps = norm or (None, None, 0.0)
    check_dense(x=x, weight=weight, bias=bias)
    channels = check_channels("x", x)
    check_optional((channels,), shift=shift, weight=weight, bias=bias)
    check_shape("row_of", row_of, (shape[0] * shape[1],))
    check_integers(row_of=row_of)
    check_device(x, row_of)
    if shift is not None:
        check_dense(shift=shift)
        check_device(x, shift)
    dtype = dtype or x.dtype
    if dtype not in COMPUTE_DTYPES:
        raise InputError(f"dtype is {dtype}: use float16, bfloat16, float32 or float64")

    out = x.new_empty(*shape, channels, dtype=dtype)
    blocks = row_blocks(channels)
    if out.numel():
        with torch.cuda.device_of(x):
            _unpack_rows_fwd_kernel[(ceil_div(len(row_of), blocks.rows),)](
                x.contiguous(),
                row_of.contiguous(),
                contiguous(shift),
                contiguous(weight),
                contiguous(bias),
                out,
                len(row_of),
                channels,
                eps,
                ACCUMULATE=accumulator(x),
                ROWS=blocks.rows,
                CHANNELS=blocks.channels,
                num_warps=blocks.warps,
                **early_launch(x),
            )
    return out
