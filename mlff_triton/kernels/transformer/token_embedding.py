"""Padded batches of tokens to embedded rows without padding, and rows back to padded batches.

    x_t = word[id_t] scale_b + position_table[position_t] + kind_table[kind_t]      x <- norm(x)

where all but the word is optional. Rows of kept tokens lie one after the other, in the order of the
tokens. A token's row is the number of kept tokens before it, which every program counts for its
first token itself. In large batches that would take longer than a launch, so there a kernel counts
the tokens of every sequence first. The scale is the token dropout of ESM-2 (Z. Lin et al.,
https://doi.org/10.1126/science.ade2574, as in Hugging Face's transformers): words of masked tokens
are zero, and the others grow with the share of masked ones, as in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.dense import COMPUTE_DTYPES, accumulator, check_dense
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.transformer.reference.token_embedding import TRAINED_WITH, Norm
from mlff_triton.kernels.types.packed_rows import PackedRows

_MAX_CHANNELS = 16384
_FEW_TOKENS = 4096  # padding included: up to these, programs count what they need themselves
_COUNTED = 1024  # elements that are counted at once
_PROGRAMS = 1024  # fill a chip: of more tokens, programs take several blocks in turn
_MAX_STEPS = 16

_TRAINED_WITH = tl.constexpr(TRAINED_WITH)


@triton.jit
def _count_equal(values_ptr, value, first, last, BLOCK: tl.constexpr):
    """How many of the elements from the first to before the last are this value."""
    count = tl.zeros((BLOCK,), tl.int32)
    for start in range(first, last, BLOCK):
        place = start + tl.arange(0, BLOCK)
        values = tl.load(values_ptr + place, place < last, other=0)
        count += ((values == value) & (place < last)).to(tl.int32)
    return tl.sum(count, 0)


@triton.jit
def _sum_before(values_ptr, last, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, last, BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(values_ptr + place, place < last, other=0)
    return tl.sum(total, 0)


@triton.jit
def _count_sequence(
    ids_ptr, mask_ptr, sequence, length, MASK_TOKEN: tl.constexpr, BLOCK: tl.constexpr
):
    """How many tokens of a sequence are kept, and how many are masked."""
    first = sequence * length
    kept = length
    masked = 0
    if mask_ptr is not None:
        kept = length - _count_equal(mask_ptr, 0, first, first + length, BLOCK)
    if MASK_TOKEN is not None:
        masked = _count_equal(ids_ptr, MASK_TOKEN, first, first + length, BLOCK)
    return kept, masked


@triton.jit
def _row_of_first(mask_ptr, counts_ptr, sequence, length, begin, BLOCK: tl.constexpr):
    """How many kept tokens there are before a place in a sequence, in all sequences before too."""
    first = sequence * length
    row = first + begin
    if mask_ptr is not None:
        if counts_ptr is None:
            row -= _count_equal(mask_ptr, 0, 0, row, BLOCK)
        else:
            padding = _count_equal(mask_ptr, 0, first, row, BLOCK)
            row = begin + _sum_before(counts_ptr, sequence, BLOCK).to(tl.int64) - padding
    return row


@triton.jit
def _dropout_scale(
    ids_ptr,
    mask_ptr,
    counts_ptr,
    sequence,
    length,
    MASK_TOKEN: tl.constexpr,
    COUNT_PADDING: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What words of tokens that are not masked are multiplied with."""
    if counts_ptr is None:
        kept, masked = _count_sequence(ids_ptr, mask_ptr, sequence, length, MASK_TOKEN, BLOCK)
    else:
        kept = tl.load(counts_ptr + sequence)
        masked = tl.load(counts_ptr + tl.num_programs(0) + sequence)
    counted = length if COUNT_PADDING else tl.maximum(kept, 1)
    return _TRAINED_WITH / (1 - masked.to(ACCUMULATE) / counted)


@triton.jit
def _gather(table_ptr, n_table, index, wanted, channel, channels, ACCUMULATE: tl.constexpr):
    """Rows of a table; NaN where the index points outside of it."""
    known = (index >= 0) & (index < n_table)
    rows = tl.load(
        table_ptr + index.to(tl.int64)[:, None] * channels + channel[None, :],
        (wanted & known)[:, None] & (channel < channels)[None, :],
        other=0.0,
    )  # [ROWS, CHANNELS]
    return tl.where(known[:, None], rows.to(ACCUMULATE), float("nan"))


@triton.jit
def _add_gathered(x, table_ptr, n_table, index_ptr, index, token, wanted, channel, channels):
    """Add rows of a table, if there is one: that of each token's index, or of the one given."""
    if table_ptr is not None:
        if index_ptr is not None:
            index = tl.load(index_ptr + token, wanted, other=0)
        x += _gather(table_ptr, n_table, index, wanted, channel, channels, x.dtype)
    return x


@triton.jit
def _normalize(x, weight_ptr, bias_ptr, channel, channels, eps):
    """Layer normalization of rows that are zero beyond their channels."""
    inside = channel < channels
    mean = tl.sum(x, 1) / channels
    centered = tl.where(inside[None, :], x - mean[:, None], 0.0)
    variance = tl.sum(centered * centered, 1) / channels
    rstd = 1 / tl.sqrt((variance + eps).to(x.dtype))
    y = centered * rstd[:, None]
    y *= tl.load(weight_ptr + channel, inside, other=0.0).to(x.dtype)[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + channel, inside, other=0.0).to(x.dtype)[None, :]
    return y


@triton.jit
def _token_counts_fwd_kernel(
    ids_ptr, mask_ptr, counts_ptr, length, MASK_TOKEN: tl.constexpr, BLOCK: tl.constexpr
):
    sequence = tl.program_id(0).to(tl.int64)
    kept, masked = _count_sequence(ids_ptr, mask_ptr, sequence, length, MASK_TOKEN, BLOCK)
    tl.store(counts_ptr + sequence, kept)
    tl.store(counts_ptr + tl.num_programs(0) + sequence, masked)


@triton.jit
def _token_embedding_fwd_kernel(
    ids_ptr,
    mask_ptr,
    counts_ptr,
    word_ptr,
    positions_ptr,
    position_table_ptr,
    kinds_ptr,
    kind_table_ptr,
    weight_ptr,
    bias_ptr,
    x_ptr,
    token_ptr,
    place_ptr,
    row_ptr_ptr,
    row_of_ptr,
    length,
    channels,
    n_words,
    n_positions,
    n_kinds,
    capacity,
    tokens,
    eps: tl.float64,
    MASK_TOKEN: tl.constexpr,
    COUNT_PADDING: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    COUNTED: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    sequence, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = sequence * length
    begin = block * tokens
    end = tl.minimum(begin + tokens, length)
    channel = tl.arange(0, CHANNELS)

    row = _row_of_first(mask_ptr, counts_ptr, sequence, length, begin, COUNTED)
    if MASK_TOKEN is not None:
        scale = _dropout_scale(
            ids_ptr,
            mask_ptr,
            counts_ptr,
            sequence,
            length,
            MASK_TOKEN,
            COUNT_PADDING,
            ACCUMULATE,
            COUNTED,
        )
    for start in range(begin, end, ROWS):
        place = start + tl.arange(0, ROWS)
        token = first + place
        inside = place < end
        chosen = inside
        if mask_ptr is not None:
            chosen &= tl.load(mask_ptr + token, inside, other=0) != 0
        flags = chosen.to(tl.int32)
        rows = row + tl.cumsum(flags, 0) - flags
        row += tl.sum(flags, 0)
        wanted = chosen & (rows < capacity)
        tl.store(row_of_ptr + token, tl.where(wanted, rows, -1).to(tl.int32), inside)
        tl.store(token_ptr + rows, token.to(tl.int32), wanted)
        tl.store(place_ptr + rows, place, wanted)

        ids = tl.load(ids_ptr + token, wanted, other=0)
        x = _gather(word_ptr, n_words, ids, wanted, channel, channels, ACCUMULATE)
        if MASK_TOKEN is not None:
            x = tl.where((ids == MASK_TOKEN)[:, None], 0.0, x) * scale
        x = _add_gathered(
            x,
            position_table_ptr,
            n_positions,
            positions_ptr,
            place,
            token,
            wanted,
            channel,
            channels,
        )
        kind = tl.zeros((ROWS,), tl.int32)
        x = _add_gathered(
            x, kind_table_ptr, n_kinds, kinds_ptr, kind, token, wanted, channel, channels
        )
        if weight_ptr is not None:
            x = _normalize(x, weight_ptr, bias_ptr, channel, channels, eps)
        tl.store(
            x_ptr + rows[:, None] * channels + channel[None, :],
            x.to(x_ptr.dtype.element_ty),
            wanted[:, None] & (channel < channels)[None, :],
        )

    tl.store(row_ptr_ptr, 0, (sequence == 0) & (block == 0))
    ending = tl.minimum(row, capacity).to(tl.int32)
    tl.store(row_ptr_ptr + sequence + 1, ending, block == tl.num_programs(1) - 1)


@triton.jit
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
        x = _normalize(x, weight_ptr, bias_ptr, channel, channels, eps)
    x = tl.where((row >= 0)[:, None], x, 0.0)

    tl.store(
        out_ptr + token[:, None] * channels + channel[None, :],
        x.to(out_ptr.dtype.element_ty),
        (token < n_tokens)[:, None] & inside[None, :],
    )


class _Blocks(NamedTuple):
    rows: int
    channels: int
    warps: int


@cache
def _blocks(channels: int) -> _Blocks:
    """About 2048 elements at once, or one row; at most 32 a thread."""
    block = triton.next_power_of_2(channels)
    return _Blocks(max(1, 2048 // block), block, min(16, max(4, block // 512)))


def _ceil_div(n: int, size: int) -> int:
    """As `triton.cdiv`, which takes the host microseconds."""
    return -(-n // size)


def _launch_counts(ids: Tensor, mask: Tensor | None, mask_token: int | None) -> Tensor:
    """Kept and masked tokens of every sequence, int32 [2, B]."""
    batch, length = ids.shape
    counts = ids.new_empty(2, batch, dtype=torch.int32)
    with torch.cuda.device_of(ids):
        _token_counts_fwd_kernel[(batch,)](
            ids, mask, counts, length, MASK_TOKEN=mask_token, BLOCK=_COUNTED
        )
    return counts


def token_embedding(
    ids: Tensor,
    word: Tensor,
    mask: Tensor | None = None,
    *,
    positions: Tensor | None = None,
    position_table: Tensor | None = None,
    kinds: Tensor | None = None,
    kind_table: Tensor | None = None,
    norm: Norm | None = None,
    mask_token: int | None = None,
    count_padding: bool = False,
    capacity: int | None = None,
) -> tuple[Tensor, PackedRows]:
    """Embed the kept tokens of a padded batch as packed rows.

    Nothing waits for a GPU, so that a CUDA graph can hold it; how many tokens are kept is known on
    the device alone. No gradients flow.

    Parameters
    ----------
    ids : int64 or int32 [B, L]
        Tokens, as rows of ``word``. A row of a token that points outside a table is NaN.
    word : [V, C]
        A vector for each token, of at most 16384 channels; float16, bfloat16, float32 or float64.
        Half precisions are added up and normalized in float32.
    mask : [B, L], optional
        Of any real dtype, not zero where a token is kept; all are by default. Padding may lie
        anywhere, and its ids may be anything.
    positions : int64 or int32 [B, L], optional
        Rows of ``position_table``; by default 0 to L - 1 in every sequence, padding counted.
    position_table : [P, C], optional
        A vector for each position, added.
    kinds : int64 or int32 [B, L], optional
        Rows of ``kind_table``; 0 by default.
    kind_table : [Y, C], optional
        A vector for each type of token, added.
    norm : (weight [C], bias [C] or None, eps), optional
        Layer normalization of the sum. All tables, weights and biases have the dtype of ``word``.
    mask_token : int, optional
        For token dropout: words of tokens that are this one are zero, those of others are scaled by
        (1 - 0.15 * 0.8) / (1 - n_masked / n_kept) of their sequence. Masked tokens are counted in
        all of ``ids``, whether kept or not. Sequences of nothing else are NaN.
    count_padding : bool
        Whether n_kept is L there, as some versions of transformers have it.
    capacity : int, optional
        Number T of rows; B L by default. Tokens beyond it are left out.

    Returns
    -------
    x : [T, C]
        Of the dtype of ``word``. Nothing is written to rows from ``row_ptr[-1]`` on.
    packed : PackedRows
        Where the tokens are; likewise.

    Raises
    ------
    InputError
        If shapes, dtypes, devices or options do not fit together.
    BackendError
        If the tensors do not lie on a GPU.

    Examples
    --------
    >>> ids = torch.tensor([[5, 7, 1], [6, 1, 1]], device="cuda")
    >>> word = torch.randn(33, 320, device="cuda")
    >>> x, packed = token_embedding(ids, word, ids != 1)
    >>> packed.row_of.tolist(), packed.row_ptr.tolist()
    ([0, 1, -1, 2, -1, -1], [0, 2, 3])
    """
    weight, bias, eps = norm or (None, None, 0.0)
    check_dense(
        word=word, position_table=position_table, kind_table=kind_table, weight=weight, bias=bias
    )
    channels = _check_channels("word", word)
    _check_given(("*", channels), position_table=position_table, kind_table=kind_table)
    _check_given((channels,), weight=weight, bias=bias)
    check_shape("ids", ids, ("B", "L"))
    batch, length = ids.shape
    _check_given((batch, length), mask=mask, positions=positions, kinds=kinds)
    _check_integers(ids=ids, positions=positions, kinds=kinds)
    check_device(word, *(t for t in (ids, mask, positions, kinds) if t is not None))
    _check_table("positions", positions, position_table, length)
    _check_table("kinds", kinds, kind_table, 1)
    n_rows = ids.numel() if capacity is None else capacity
    if n_rows < 0 or ids.numel() >= 2**31:
        raise InputError(f"{ids.numel()} tokens cannot be {n_rows} rows: use 0 to 2^31 - 1 of both")

    x = word.new_empty(n_rows, channels)
    sizes = n_rows, n_rows, batch + 1, ids.numel()
    packed = PackedRows(*(ids.new_empty(size, dtype=torch.int32) for size in sizes))
    if not ids.numel():
        packed.row_ptr.zero_()
        return x, packed
    ids, mask = ids.contiguous(), _contiguous(mask)
    counts = None
    if ids.numel() > _FEW_TOKENS and (mask is not None or mask_token is not None):
        counts = _launch_counts(ids, mask, mask_token)
    blocks = _blocks(channels)
    steps = min(_MAX_STEPS, _ceil_div(ids.numel(), blocks.rows * _PROGRAMS))
    tokens = blocks.rows * steps
    with torch.cuda.device_of(ids):
        _token_embedding_fwd_kernel[(batch, _ceil_div(length, tokens))](
            ids,
            mask,
            counts,
            word.contiguous(),
            _contiguous(positions),
            _contiguous(position_table),
            _contiguous(kinds),
            _contiguous(kind_table),
            _contiguous(weight),
            _contiguous(bias),
            x,
            *packed,
            length,
            channels,
            *(0 if table is None else len(table) for table in (word, position_table, kind_table)),
            n_rows,
            tokens,
            eps,
            MASK_TOKEN=mask_token,
            COUNT_PADDING=count_padding,
            ACCUMULATE=accumulator(word),
            COUNTED=_COUNTED,
            ROWS=blocks.rows,
            CHANNELS=blocks.channels,
            num_warps=blocks.warps,
        )
    return x, packed


def unpack_rows(
    x: Tensor,
    row_of: Tensor,
    shape: tuple[int, int],
    *,
    shift: Tensor | None = None,
    norm: Norm | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """PackedRows rows as a padded batch, zero where there is padding; no gradients flow.

    Parameters
    ----------
    x : [T, C]
        Rows of at most 16384 channels; float16, bfloat16, float32 or float64. Half precisions are
        added up and normalized in float32.
    row_of : int32 or int64 [B L]
        Row of each token, -1 for padding, as in `PackedRows`. Its values are not checked.
    shape : (int, int)
        B and L.
    shift : [C], optional
        Added to every row, of any of these dtypes.
    norm : (weight [C], bias [C] or None, eps), optional
        Layer normalization, after the shift.
    dtype : torch.dtype, optional
        Of what is returned, one of the above; that of ``x`` by default.

    Returns
    -------
    [B, L, C]

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors do not lie on a GPU.

    Examples
    --------
    >>> rows = torch.tensor([[1.0], [2.0]], device="cuda")
    >>> row_of = torch.tensor([1, -1, -1, 0], device="cuda")
    >>> unpack_rows(rows, row_of, (2, 2)).tolist()
    [[[2.0], [0.0]], [[0.0], [1.0]]]
    """
    weight, bias, eps = norm or (None, None, 0.0)
    check_dense(x=x, weight=weight, bias=bias)
    channels = _check_channels("x", x)
    _check_given((channels,), shift=shift, weight=weight, bias=bias)
    check_shape("row_of", row_of, (shape[0] * shape[1],))
    _check_integers(row_of=row_of)
    check_device(x, row_of)
    if shift is not None:
        check_dense(shift=shift)
        check_device(x, shift)
    dtype = dtype or x.dtype
    if dtype not in COMPUTE_DTYPES:
        raise InputError(f"dtype is {dtype}: use float16, bfloat16, float32 or float64")

    out = x.new_empty(*shape, channels, dtype=dtype)
    blocks = _blocks(channels)
    if out.numel():
        with torch.cuda.device_of(x):
            _unpack_rows_fwd_kernel[(_ceil_div(len(row_of), blocks.rows),)](
                x.contiguous(),
                row_of.contiguous(),
                _contiguous(shift),
                _contiguous(weight),
                _contiguous(bias),
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


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _check_channels(name: str, rows: Tensor) -> int:
    check_shape(name, rows, ("*", "C"))
    channels = rows.shape[1]
    if not 0 < channels <= _MAX_CHANNELS:
        raise InputError(f"{name} has {channels} channels: use 1 to {_MAX_CHANNELS}")
    return channels


def _check_given(shape: Sequence[int | str], **tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None:
            check_shape(name, tensor, shape)


def _check_integers(**tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in (torch.int64, torch.int32):
            raise InputError(f"{name} is {tensor.dtype}: use int64 or int32")


def _check_table(name: str, index: Tensor | None, table: Tensor | None, n_default: int) -> None:
    """Raise unless there is a table if it is to be indexed, with all rows that are the default."""
    if index is not None and table is None:
        raise InputError(f"{name} are given without their table")
    if index is None and table is not None and len(table) < n_default:
        raise InputError(f"the table of {name} has {len(table)} rows instead of {n_default}")
