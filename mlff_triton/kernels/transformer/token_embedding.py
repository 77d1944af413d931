"""Embedding of padded batches of tokens as packed rows, without padding.

    x_t = word[id_t] scale_b + position_table[position_t] + kind_table[kind_t]      x <- norm(x)

Everything but the word embedding is optional. The kept tokens are packed row after row, in their
order; `token_counts` finds the first row of each program. The scale is the token dropout of ESM-2
(Z. Lin et al., https://doi.org/10.1126/science.ade2574, as in Hugging Face's transformers): word
embeddings of masked tokens are zero, and those of the others grow with the share of masked tokens,
as in training.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_integers, check_shape
from mlff_triton.kernels.common.dense import accumulator, check_dense
from mlff_triton.kernels.transformer.row_blocks import (
    RowBlocks,
    ceil_div,
    check_channels,
    check_optional,
    contiguous,
    normalize_rows,
    row_blocks,
)
from mlff_triton.kernels.transformer.token_counts import (
    dropout_scale,
    launch_counts,
    row_of_first,
)
from mlff_triton.kernels.transformer.types import PackedRows
from mlff_triton.kernels.types.norm import Norm

_MAX_STEPS = 16


@triton.jit
def _pack(
    mask_ptr, token_ptr, position_ptr, row_of_ptr, token, position, position_end, row, capacity
):
    """Assign rows to a block of tokens, from ``row`` on, and store which token has which row.

    Returns the rows, a mask of the tokens that have one, and the first row of the next block.
    """
    inside = position < position_end
    kept = inside
    if mask_ptr is not None:
        kept &= tl.load(mask_ptr + token, inside, other=0) != 0
    flags = kept.to(tl.int32)
    rows = row + tl.cumsum(flags, 0) - flags
    row += tl.sum(flags, 0)
    has_row = kept & (rows < capacity)
    tl.store(row_of_ptr + token, tl.where(has_row, rows, -1).to(tl.int32), inside)
    tl.store(token_ptr + rows, token.to(tl.int32), has_row)
    tl.store(position_ptr + rows, position, has_row)
    return rows, has_row, row


@triton.jit
def _gather(table_ptr, n_table, index, mask, channel, channels, ACCUMULATE: tl.constexpr):
    """Gather rows [ROWS, CHANNELS] of a table; NaN for an index outside the table."""
    known = (index >= 0) & (index < n_table)
    rows = tl.load(
        table_ptr + index.to(tl.int64)[:, None] * channels + channel[None, :],
        (mask & known)[:, None] & (channel < channels)[None, :],
        other=0.0,
    )  # [ROWS, CHANNELS]
    return tl.where(known[:, None], rows.to(ACCUMULATE), float("nan"))


@triton.jit
def _add_gathered(x, table_ptr, n_table, index_ptr, index, token, mask, channel, channels):
    """Add rows of a table if there is one, at stored indices or else at ``index``."""
    if table_ptr is not None:
        if index_ptr is not None:
            index = tl.load(index_ptr + token, mask, other=0)
        x += _gather(table_ptr, n_table, index, mask, channel, channels, x.dtype)
    return x


@triton.jit(do_not_specialize=["length", "capacity", "tokens"])
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
    position_ptr,
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
    COUNT_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Write rows x [capacity, channels] and the four arrays of `PackedRows`.

    Reads ids, mask, positions and kinds [B, length], counts [2, B], tables of words, positions and
    kinds [n, channels], and the weight and bias [channels] of the normalization. Grid: (B, blocks
    of ``tokens`` tokens); each program takes ROWS tokens at a time.
    """
    sequence, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = sequence * length
    begin = block * tokens
    end = tl.minimum(begin + tokens, length)
    channel = tl.arange(0, CHANNELS)

    row = row_of_first(mask_ptr, counts_ptr, sequence, length, begin, COUNT_BLOCK)
    if MASK_TOKEN is not None:
        scale = dropout_scale(
            ids_ptr,
            mask_ptr,
            counts_ptr,
            sequence,
            length,
            MASK_TOKEN,
            COUNT_PADDING,
            ACCUMULATE,
            COUNT_BLOCK,
        )
    for start in range(begin, end, ROWS):
        position = start + tl.arange(0, ROWS)
        token = first + position
        rows, has_row, row = _pack(
            mask_ptr, token_ptr, position_ptr, row_of_ptr, token, position, end, row, capacity
        )

        ids = tl.load(ids_ptr + token, has_row, other=0)
        x = _gather(word_ptr, n_words, ids, has_row, channel, channels, ACCUMULATE)
        if MASK_TOKEN is not None:
            x = tl.where((ids == MASK_TOKEN)[:, None], 0.0, x) * scale
        x = _add_gathered(
            x,
            position_table_ptr,
            n_positions,
            positions_ptr,
            position,
            token,
            has_row,
            channel,
            channels,
        )
        kind = tl.zeros((ROWS,), tl.int32)
        x = _add_gathered(
            x, kind_table_ptr, n_kinds, kinds_ptr, kind, token, has_row, channel, channels
        )
        if weight_ptr is not None:
            x = normalize_rows(x, weight_ptr, bias_ptr, channel, channels, eps)
        tl.store(
            x_ptr + rows[:, None] * channels + channel[None, :],
            x.to(x_ptr.dtype.element_ty),
            has_row[:, None] & (channel < channels)[None, :],
        )

    tl.store(row_ptr_ptr, 0, (sequence == 0) & (block == 0))
    last = tl.minimum(row, capacity).to(tl.int32)
    tl.store(row_ptr_ptr + sequence + 1, last, block == tl.num_programs(1) - 1)


class Tables(NamedTuple):
    """Embedding tables, and the indices into all but the first; see `token_embedding`."""

    word: Tensor
    positions: Tensor | None = None
    position_table: Tensor | None = None
    kinds: Tensor | None = None
    kind_table: Tensor | None = None


class LaunchSizes(NamedTuple):
    """Sizes of a launch.

    Attributes
    ----------
    blocks : RowBlocks
        Tokens and channels that a program takes at a time.
    count_block : int
        Elements counted at a time.
    programs : int
        Number of programs that fill a GPU. With more tokens, programs take several blocks in turn.
    few_tokens : int
        Up to this number of tokens, padding included, each program counts the tokens before its
        own.
    """

    blocks: RowBlocks
    count_block: int = 1024
    programs: int = 1024
    few_tokens: int = 4096


@cache
def launch_sizes(channels: int) -> LaunchSizes:
    """Return the sizes of a launch for rows with a number of channels."""
    return LaunchSizes(row_blocks(channels))


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
    """Embed the kept tokens of a padded batch as packed rows, without gradients.

    The host does not wait for the GPU, so a CUDA graph can capture the call. The number of kept
    tokens is known only on the device.

    Parameters
    ----------
    ids : int64 or int32 [B, L]
        Tokens, as row indices of ``word``. A token with an index outside a table gives a row of
        NaN.
    word : [V, C]
        Embedding of each token, of at most 16384 channels; float16, bfloat16, float32 or float64.
        Half precisions are added and normalized in float32.
    mask : [B, L], optional
        Nonzero for tokens to keep, of any real dtype; by default all are kept. Padding may be
        anywhere, with arbitrary ids.
    positions : int64 or int32 [B, L], optional
        Row indices of ``position_table``; by default 0 to L - 1 in every sequence, including
        padding.
    position_table : [P, C], optional
        Embedding of each position, added to that of the token.
    kinds : int64 or int32 [B, L], optional
        Row indices of ``kind_table``; 0 by default.
    kind_table : [Y, C], optional
        Embedding of each token type, added to the others.
    norm : (weight [C], bias [C] or None, eps), optional
        Layer normalization of the sum. All tables, weights and biases have the dtype of ``word``.
    mask_token : int, optional
        Token that stands for masked ones, for token dropout: its word embedding counts as zero,
        and those of other tokens are multiplied by (1 - 0.15 * 0.8) / (1 - n_masked / n_kept) of
        their sequence. All masked tokens in ``ids`` are counted, whether kept or not. A sequence
        of masked tokens alone gives NaN.
    count_padding : bool
        If True, n_kept is L in that formula, as in some versions of transformers.
    capacity : int, optional
        Number T of rows; B L by default. Kept tokens beyond it are dropped.

    Returns
    -------
    x : [T, C]
        Rows, of the dtype of ``word``. Those from ``row_ptr[-1]`` on are uninitialized.
    packed : PackedRows
        Mapping between tokens and rows, uninitialized for the same rows.

    Raises
    ------
    InputError
        If shapes, dtypes, devices or options do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> ids = torch.tensor([[5, 7, 1], [6, 1, 1]], device="cuda")
    >>> word = torch.randn(33, 320, device="cuda")
    >>> x, packed = token_embedding(ids, word, ids != 1)
    >>> packed.row_of.tolist(), packed.row_ptr.tolist()
    ([0, 1, -1, 2, -1, -1], [0, 2, 3])
    """
    tables = Tables(word, positions, position_table, kinds, kind_table)
    n_rows = ids.numel() if capacity is None else capacity
    channels = _check_inputs(ids, mask, tables, norm, n_rows)
    sizes = launch_sizes(channels)
    return launch_token_embedding(ids, mask, tables, norm, mask_token, count_padding, n_rows, sizes)


def launch_token_embedding(
    ids: Tensor,
    mask: Tensor | None,
    tables: Tables,
    norm: Norm | None,
    mask_token: int | None,
    count_padding: bool,
    n_rows: int,
    sizes: LaunchSizes,
) -> tuple[Tensor, PackedRows]:
    """Run `token_embedding` on checked inputs, with the given sizes."""
    weight, bias, eps = norm or (None, None, 0.0)
    word, positions, position_table, kinds, kind_table = tables
    (batch, length), channels = ids.shape, word.shape[1]
    x = word.new_empty(n_rows, channels)
    lengths = n_rows, n_rows, batch + 1, ids.numel()
    packed = PackedRows(*(ids.new_empty(n, dtype=torch.int32) for n in lengths))
    if not ids.numel():
        packed.row_ptr.zero_()
        return x, packed
    ids, mask = ids.contiguous(), contiguous(mask)
    counts = None
    if ids.numel() > sizes.few_tokens and (mask is not None or mask_token is not None):
        counts = launch_counts(ids, mask, mask_token, sizes.count_block)
    blocks = sizes.blocks
    steps = min(_MAX_STEPS, ceil_div(ids.numel(), blocks.rows * sizes.programs))
    tokens = blocks.rows * steps
    with torch.cuda.device_of(ids):
        _token_embedding_fwd_kernel[(batch, ceil_div(length, tokens))](
            ids,
            mask,
            counts,
            word.contiguous(),
            contiguous(positions),
            contiguous(position_table),
            contiguous(kinds),
            contiguous(kind_table),
            contiguous(weight),
            contiguous(bias),
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
            COUNT_BLOCK=sizes.count_block,
            ROWS=blocks.rows,
            CHANNELS=blocks.channels,
            num_warps=blocks.warps,
        )
    return x, packed


def _check_inputs(
    ids: Tensor, mask: Tensor | None, tables: Tables, norm: Norm | None, n_rows: int
) -> int:
    """Check that the inputs of `token_embedding` fit together, and return the channels."""
    word, positions, position_table, kinds, kind_table = tables
    weight, bias, _ = norm or (None, None, 0.0)
    check_dense(
        word=word, position_table=position_table, kind_table=kind_table, weight=weight, bias=bias
    )
    channels = check_channels("word", word)
    check_optional(("*", channels), position_table=position_table, kind_table=kind_table)
    check_optional((channels,), weight=weight, bias=bias)
    check_shape("ids", ids, ("B", "L"))
    check_optional(ids.shape, mask=mask, positions=positions, kinds=kinds)
    check_integers(ids=ids, positions=positions, kinds=kinds)
    check_device(word, *(t for t in (ids, mask, positions, kinds) if t is not None))
    _check_table("positions", positions, position_table, ids.shape[1])
    _check_table("kinds", kinds, kind_table, 1)
    if n_rows < 0 or ids.numel() >= 2**31:
        raise InputError(f"{ids.numel()} tokens cannot be {n_rows} rows: use 0 to 2^31 - 1 of both")
    return channels


def _check_table(name: str, index: Tensor | None, table: Tensor | None, n_default: int) -> None:
    """Raise if indices lack their table, or if the table lacks rows of the default indices."""
    if index is not None and table is None:
        raise InputError(f"{name} are given without their table: pass both, or neither")
    if index is None and table is not None and len(table) < n_default:
        raise InputError(f"the table of {name} has {len(table)} rows instead of {n_default}")
