"""Convolutions along sequences with channels last, as products on tensor cores.

    y_s = b + sum_t W_t x_(s + t - (T - 1) // 2) + r residual_s
    activated = gelu(scale y + shift)          gelu(u) = u sigmoid(1.702 u)

The sum over taps and input channels is one long sum of products of blocks. Tensor descriptors load
the blocks, and read zeros beyond the ends of a sequence. Operands need no further computation,
since the previous layer has stored its result activated. For few rows, the sum is split among
programs, and a second kernel adds their results in a fixed order.

Source: Ž. Avsec et al., "Effective gene expression prediction from sequence by integrating
long-range interactions", https://doi.org/10.1038/s41592-021-01252-x.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.descriptors import has_descriptors
from mlff_triton.kernels.common.early_launch import allow_next, early_launch, wait_for_previous
from mlff_triton.kernels.genomics.sequence_tiles import (
    HALF,
    SMALL,
    Launch,
    Tile,
    column_parts,
    count_of,
    count_tiles,
    describe,
    describe_weight,
    load_block,
    locate,
    store_rows,
)
from mlff_triton.kernels.genomics.types import Activated, Activation


@triton.jit
def _load_residual(residual, batch, row, column, DOUBLES: tl.constexpr):
    """Load a block of the residual in float32, with every row repeated if DOUBLES."""
    block = load_block(residual, batch, row // (1 + DOUBLES), column)
    if DOUBLES:
        M: tl.constexpr = block.shape[0]
        N: tl.constexpr = block.shape[1]
        block = tl.reshape(tl.broadcast_to(block[:, None, :], (M, 2, N)), (2 * M, N))
    return block.to(tl.float32)


@triton.jit
def _finish(
    rows,
    residual,
    y,
    activated,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    residual_scale,
    batch,
    row,
    column,
    n_out,
    DOUBLES: tl.constexpr,
):
    """Add the bias and the residual, unless they are None, to a block of sums, and store it."""
    if bias_ptr is not None:
        columns = column + tl.arange(0, rows.shape[1])
        bias = tl.load(bias_ptr + columns, columns < n_out, other=0.0)
        rows += bias.to(tl.float32)[None, :]
    if residual is not None:
        rows += residual_scale * _load_residual(residual, batch, row, column, DOUBLES)
    store_rows(rows, y, activated, scale_ptr, shift_ptr, batch, row, column, n_out)


@triton.jit
def _convolution_kernel(
    x,
    weight,
    residual,
    y,
    activated,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    residual_scale,
    n_sequences,
    length,
    n_out,
    n_in,
    x_stride,
    n_added,
    added_stride,
    activated_stride,
    PROGRAMS: tl.constexpr,
    SPLITS: tl.constexpr,
    TAPS: tl.constexpr,
    DOUBLES: tl.constexpr,
    DESCRIBED: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    PARTS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write rows y and activated [n_sequences, length, n_out].

    Reads x [n_sequences, length, n_in], weight [n_out, TAPS n_in], and the residual, which has
    n_added channels and, with DOUBLES, half as many rows. For all of these, see `describe`. Bias,
    scale and shift are [n_out]. If SPLITS > 1, the kernel only writes y
    [SPLITS n_sequences, length, n_out], the sums over equal parts of the steps, and the arguments
    of later operations are None. Grid: (PROGRAMS,). A program takes every PROGRAMS-th tile of M
    rows and N columns, and finishes it in PARTS parts.
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    n_rows: tl.constexpr = M // (1 + DOUBLES)
    W: tl.constexpr = N // PARTS
    added_length = length // (1 + DOUBLES)
    x = describe(x, n_sequences, length, n_in, x_stride, DESCRIBED, M, K)
    weight = describe_weight(weight, n_out, TAPS * n_in, DESCRIBED, N, K)
    residual = describe(
        residual, n_sequences, added_length, n_added, added_stride, DESCRIBED, n_rows, W
    )
    y = describe(y, SPLITS * n_sequences, length, n_out, n_out, DESCRIBED, M, W)
    activated = describe(activated, n_sequences, length, n_out, activated_stride, DESCRIBED, M, W)
    n_sums = SPLITS * count_tiles(n_sequences, length, n_out, M, N)
    for index in tl.range(tl.program_id(0), n_sums, PROGRAMS, flatten=True):
        batch, row, column = locate(index // SPLITS, n_sequences, length, n_out, M, N)
        split = index % SPLITS
        n_steps = tl.cdiv(TAPS * tl.cdiv(n_in, K), SPLITS)  # steps beyond the last read zeros
        acc = tl.zeros((M, N), tl.float32)
        for i in range(n_steps):
            step = split * n_steps + i
            tap, k = step % TAPS, step // TAPS * K
            block = load_block(x, batch, row + tap - (TAPS - 1) // 2, k)
            acc = tl.dot(block, weight.load([column, tap * n_in + k]).T, acc)
        parts = column_parts(acc, PARTS)
        for part in tl.static_range(PARTS):
            _finish(
                parts[part],
                residual,
                y,
                activated,
                bias_ptr,
                scale_ptr,
                shift_ptr,
                residual_scale,
                split * n_sequences + batch,
                row,
                column + part * W,
                n_out,
                DOUBLES,
            )


@triton.jit
def _added_sums_kernel(
    sums_ptr,
    residual,
    y,
    activated,
    bias_ptr,
    scale_ptr,
    shift_ptr,
    residual_scale,
    n_sequences,
    length,
    n_out,
    n_added,
    added_stride,
    activated_stride,
    SPLITS: tl.constexpr,
    DOUBLES: tl.constexpr,
    DESCRIBED: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Add sums [SPLITS, n_sequences, length, n_out], and finish them like `_convolution_kernel`.

    Grid: (tiles of M rows and N columns,).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    n_rows: tl.constexpr = M // (1 + DOUBLES)
    added_length = length // (1 + DOUBLES)
    residual = describe(
        residual, n_sequences, added_length, n_added, added_stride, DESCRIBED, n_rows, N
    )
    y = describe(y, n_sequences, length, n_out, n_out, DESCRIBED, M, N)
    activated = describe(activated, n_sequences, length, n_out, activated_stride, DESCRIBED, M, N)
    batch, row, column = locate(tl.program_id(0), n_sequences, length, n_out, M, N)
    m, n = row + tl.arange(0, M)[:, None], column + tl.arange(0, N)[None, :]
    inside = (m < length) & (n < n_out)
    rows = tl.zeros((M, N), tl.float32)
    for split in tl.static_range(SPLITS):
        sequence = (split * n_sequences + batch).to(tl.int64)
        offsets = (sequence * length + m) * n_out + n
        rows += tl.load(sums_ptr + offsets, inside, other=0.0)
    _finish(
        rows,
        residual,
        y,
        activated,
        bias_ptr,
        scale_ptr,
        shift_ptr,
        residual_scale,
        batch,
        row,
        column,
        n_out,
        DOUBLES,
    )


@triton.jit
def _sequence_windows_kernel(
    x_ptr,
    out_ptr,
    n_rows,
    length,
    stride,
    n_columns,
    TAPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Write windows of x [n_rows, CHANNELS] to rows of n_columns, ``stride`` elements apart.

    Grid: (blocks of M rows,).
    """
    allow_next(EARLY_LAUNCH)
    wait_for_previous(EARLY_LAUNCH)
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)[:, None]
    column = tl.arange(0, N)[None, :]
    shift = column // CHANNELS - (TAPS - 1) // 2
    position = row % length + shift
    inside = (row < n_rows) & (position >= 0) & (position < length) & (column < TAPS * CHANNELS)
    offsets = (row + shift) * CHANNELS + column % CHANNELS
    window = tl.load(x_ptr + offsets, inside, other=0.0)  # [M, N]
    mask = (row < n_rows) & (column < n_columns)
    tl.store(out_ptr + row * stride + column, window.to(out_ptr.dtype.element_ty), mask)


_ADDED = Tile(16, 64, 64, 1, 4, 1, 1)  # for sums of splits

# Microseconds per step on an H200, for all tiles that share a multiprocessor and for one alone.
_STEP_TIMES = {
    Tile(128, 256, 64, 4, 8, 4, 1): (0.77, 0.77),
    Tile(256, 128, 64, 4, 8, 4, 1): (0.79, 0.79),
    Tile(128, 128, 64, 2, 8, 5, 1): (0.43, 0.43),
    HALF: (0.84, 0.60),
}
_SPLITS = 1, 2, 3, 4, 8
_LAUNCH_TIME = 3.0  # microseconds, as below
_SUM_TIME = 8 / 3e6  # per float32 that is written and read, at 3 TB/s


class Plan(NamedTuple):
    """Block sizes, and the number of programs that share the sums of a tile."""

    tile: Tile
    splits: int = 1

    @classmethod
    def of(cls, x: Tensor, n_out: int, taps: int) -> Plan:
        """Return the fastest plan for rows x [B, S, K]."""
        if not hardware.has_large_memory(x):
            return cls(SMALL)
        return _fastest(x.shape, n_out, taps, hardware.multiprocessors(x.device))

    def time(self, shape: Sequence[int], n_out: int, taps: int, multiprocessors: int) -> float:
        """Estimate the time for rows of a shape [B, S, K], in microseconds."""
        tile, splits = self
        busiest = triton.cdiv(splits * count_of(tile, shape, n_out), multiprocessors)
        rounds, rest = divmod(busiest, tile.programs)
        together, alone = _STEP_TIMES[tile]
        steps = triton.cdiv(taps * triton.cdiv(shape[2], tile.inner), splits)
        time = steps * (rounds * together + rest * alone)
        if splits > 1:
            time += _LAUNCH_TIME + _SUM_TIME * splits * shape[0] * shape[1] * n_out
        return float(time)


@lru_cache(maxsize=1024)
def _fastest(shape: Sequence[int], n_out: int, taps: int, multiprocessors: int) -> Plan:
    tiles = [HALF] if taps == 1 else _STEP_TIMES
    plans = [Plan(tile, splits) for splits in _SPLITS for tile in tiles]
    return min(plans, key=lambda plan: plan.time(shape, n_out, taps, multiprocessors))


class _Epilogue(NamedTuple):
    """Terms to add to sums, and buffers for the rows."""

    y: Tensor | None
    activated: Tensor | None = None
    bias: Tensor | None = None
    residual: Tensor | None = None
    residual_scale: float = 1.0
    activation: Activation | None = None
    doubles: bool = False

    def operands(self, launch: Launch) -> tuple[Any, ...]:
        """Return the arguments that a kernel reads and writes after the sums."""
        return (
            launch.given(self.residual, launch.part, launch.tile.rows // (1 + self.doubles)),
            launch.given(self.y, launch.part),
            launch.given(self.activated, launch.part),
            self.bias,
            *(self.activation or (None, None)),
            self.residual_scale,
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Channels of the residual, and strides of its rows and of activated rows."""
        residual, activated = self.residual, self.activated
        added = (0, 0) if residual is None else (residual.shape[2], residual.stride(1))
        return *added, 0 if activated is None else activated.stride(1)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    residual: Tensor | None = None,
    residual_scale: float = 1.0,
    activation: Activation | None = None,
    with_rows: bool = True,
    out: Tensor | None = None,
) -> Activated:
    """Convolve sequences, and normalize and activate the result for the next layer.

    Parameters
    ----------
    x : [B, S, K]
        Rows, float16 or bfloat16, contiguous in the last axis, with one stride for the rows of all
        sequences. The stride and K are multiples of 8 elements.
    weight : [N, T, K]
        Weights of T taps, contiguous, of the dtype of ``x``; N is a multiple of 8.
    bias : [N]
        Bias.
    residual : [B, S, R] or [B, S / 2, R], optional
        Rows to add to the first R <= N channels, each repeated if there are S / 2 of them. R is a
        multiple of 8, and strides are as for ``x``.
    residual_scale : float
        Factor of the residual.
    activation : Activation, optional
        Normalization of the next layer. Activated rows are returned if it is given.
    with_rows : bool
        If False, do not return the rows that are not activated.
    out : [B, S, N], optional
        Buffer for the activated rows, with strides as for ``x``.

    Returns
    -------
    Activated
        Rows [B, S, N] of the dtype of ``x``.
    """
    plan = Plan.of(x, *weight.shape[:2])
    return launch_convolution(
        x, weight, bias, residual, residual_scale, activation, with_rows, out, plan
    )


def launch_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    residual_scale: float,
    activation: Activation | None,
    with_rows: bool,
    out: Tensor | None,
    plan: Plan,
) -> Activated:
    """Run `convolution` with the given plan."""
    n_sequences, length, _ = x.shape
    n_out = len(weight)
    shape = n_sequences, length, n_out
    y = x.new_empty(shape) if with_rows else None
    activated = x.new_empty(shape) if activation is not None and out is None else out
    doubles = residual is not None and residual.shape[1] != length
    epilogue = _Epilogue(y, activated, bias, residual, residual_scale, activation, doubles)
    with torch.cuda.device_of(x):
        if plan.splits == 1:
            _launch_sums(x, weight, plan, epilogue)
        else:
            sums = x.new_empty(plan.splits, *shape, dtype=torch.float32)
            _launch_sums(x, weight, plan, _Epilogue(sums.flatten(0, 1)))
            _launch_added_sums(sums, epilogue)
    return Activated(y, activated)


def _launch_sums(x: Tensor, weight: Tensor, plan: Plan, epilogue: _Epilogue) -> None:
    n_sequences, length, n_in = x.shape
    n_out, taps, _ = weight.shape
    launch = Launch.of(plan.tile, x, n_out, plan.splits)
    _convolution_kernel[(launch.programs,)](
        launch.given(x, launch.operand),
        launch.given(weight.flatten(1), launch.weight),
        *epilogue.operands(launch),
        n_sequences,
        length,
        n_out,
        n_in,
        x.stride(1),
        *epilogue.sizes,
        DESCRIBED=launch.described,
        SPLITS=plan.splits,
        TAPS=taps,
        DOUBLES=epilogue.doubles,
        **launch.options,
        **early_launch(x),
    )


def _launch_added_sums(sums: Tensor, epilogue: _Epilogue) -> None:
    splits, *shape = sums.shape
    launch = Launch(_ADDED, count_of(_ADDED, shape, shape[2]), has_descriptors(sums))
    _added_sums_kernel[(launch.programs,)](
        sums,
        *epilogue.operands(launch),
        *shape,
        *epilogue.sizes,
        DESCRIBED=launch.described,
        SPLITS=splits,
        DOUBLES=epilogue.doubles,
        M=_ADDED.rows,
        N=_ADDED.columns,
        num_warps=_ADDED.warps,
        **early_launch(sums),
    )


def sequence_windows(x: Tensor, taps: int, out: Tensor) -> None:
    """Write the window of channels around every position of sequences.

    A convolution with few channels is the product of the windows and a weight [N, T C].

    Parameters
    ----------
    x : [B, S, C]
        Sequences, contiguous, of any floating-point dtype; C is a power of two.
    taps : int
        Number of positions T in a window, (T - 1) // 2 of them before its center. Positions beyond
        the ends of a sequence are zero.
    out : [B, S, D]
        Buffer for the windows, position by position, followed by D - T C zeros, with one stride for
        the rows of all sequences.
    """
    n_sequences, length, channels = x.shape
    n_rows, rows = n_sequences * length, 32
    with torch.cuda.device_of(x):
        _sequence_windows_kernel[(triton.cdiv(n_rows, rows),)](
            x,
            out,
            n_rows,
            length,
            out.stride(1),
            out.shape[2],
            TAPS=taps,
            CHANNELS=channels,
            M=rows,
            N=triton.next_power_of_2(out.shape[2]),
            **early_launch(x),
        )
