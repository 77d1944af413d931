"""Linear maps in float32 on tensor cores, of rows that are split into float16 halves.

    y = ((x_low w_high^T + x_high w_low^T + x_high w_high^T) x_unit) w_unit + b

For the halves, see `mlff_triton.kernels.numerics.split`; for sums of their products, see
`mlff_triton.kernels.numerics.product`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from mlff_triton.errors import InputError
from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.descriptors import describe, given, has_descriptors
from mlff_triton.kernels.common.tiles import tile_in_group
from mlff_triton.kernels.numerics.product import product, split_along, untruncated
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.numerics.split import SplitOperand

_ELEMENTS = 2048  # per program that splits rows
_MOST_CHANNELS = 4096
_ALIGNED = 8  # halves in 16 bytes
_DTYPES = (torch.float16, torch.float16, torch.float32)


@triton.jit
def _split_rows_fwd_kernel(
    x_ptr,
    high_ptr,
    low_ptr,
    unit_ptr,
    n_rows,
    CHANNELS: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    """Write high and low [n_rows, CHANNELS] and unit [n_rows] of rows x.

    Grid: (blocks of M rows,).
    """
    row, channel = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    inside = (row < n_rows)[:, None] & (channel < CHANNELS)[None, :]
    offsets = row.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    high, low, unit = split_along(tl.load(x_ptr + offsets, inside, other=0.0), 1)
    tl.store(high_ptr + offsets, high, inside)
    tl.store(low_ptr + offsets, low, inside)
    tl.store(unit_ptr + row[:, None], unit, (row < n_rows)[:, None])


@triton.jit
def _split_linear_fwd_kernel(
    x_high,
    x_low,
    w_high,
    w_low,
    x_unit_ptr,
    w_unit_ptr,
    bias_ptr,
    out_ptr,
    n_rows,
    n_out,
    n_in,
    DESCRIBED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    STAGES: tl.constexpr,
    LOSS: tl.constexpr,
):
    """Write out [n_rows, n_out].

    Reads halves x [n_rows, n_in] and w [n_out, n_in] (see `describe`), their units [n_rows] and
    [n_out], and a bias [n_out] or None. Grid: (tiles of M rows and N columns,).
    """
    tile_m, tile_n = tile_in_group(tl.program_id(0), tl.cdiv(n_rows, M), tl.cdiv(n_out, N))
    first, column = tile_m * M, tile_n * N
    x_high = describe(x_high, (n_rows, n_in), (n_in,), (M, K), DESCRIBED)
    x_low = describe(x_low, (n_rows, n_in), (n_in,), (M, K), DESCRIBED)
    w_high = describe(w_high, (n_out, n_in), (n_in,), (N, K), DESCRIBED)
    w_low = describe(w_low, (n_out, n_in), (n_in,), (N, K), DESCRIBED)
    acc = tl.zeros((M, N), tl.float32)
    for start in tl.range(0, n_in, K, num_stages=STAGES):
        x = x_high.load([first, start]), x_low.load([first, start])
        w = w_high.load([column, start]).T, w_low.load([column, start]).T
        acc += product(x, w, "halves")
    row, out = first + tl.arange(0, M), column + tl.arange(0, N)
    x_unit = tl.load(x_unit_ptr + row, row < n_rows, other=0.0)
    w_unit = tl.load(w_unit_ptr + out, out < n_out, other=0.0)
    acc = untruncated(acc, K, LOSS) * x_unit[:, None] * w_unit[None, :]
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + out, out < n_out, other=0.0).to(tl.float32)[None, :]
    pointers = out_ptr + row.to(tl.int64)[:, None] * n_out + out[None, :]
    tl.store(pointers, acc, (row < n_rows)[:, None] & (out < n_out)[None, :])


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    rows: int
    columns: int
    channels: int
    warps: int
    stages: int

    @classmethod
    def of(cls, n_rows: int, n_out: int, x: Tensor) -> Tile:
        """Return block sizes for a number of rows and results, on the GPU of ``x``."""
        if not hardware.has_large_memory(x):
            return cls(64, 64, 32, 4, 2)
        best = cls._fastest(n_rows, n_out, hardware.multiprocessors(x.device))
        return best._replace(stages=best.stages - hardware.has_tensor_memory(x))

    @classmethod
    @lru_cache(maxsize=1024)
    def _fastest(cls, n_rows: int, n_out: int, processors: int) -> Tile:
        """Return the block sizes that take the shortest time.

        A multiprocessor takes one tile at a time, or two small ones. The times are relative, and
        were measured on an H200 and an H100.
        """

        def cost(choice: tuple[Tile, int, float]) -> float:
            tile, at_a_time, time = choice
            tiles = triton.cdiv(n_rows, tile.rows) * triton.cdiv(n_out, tile.columns)
            return time * float(triton.cdiv(tiles, at_a_time * processors))

        choices = (
            (cls(128, 128, 64, 8, 3), 1, 19.3),
            (cls(64, 128, 64, 4, 4), 1, 12.2),
            (cls(64, 64, 64, 4, 3), 2, 10.9),
            (cls(64, 64, 128, 4, 3), 1, 8.5),
            (cls(64, 32, 128, 4, 3), 1, 7.7),
        )
        return min(choices, key=cost)[0]


def split_rows(x: Tensor) -> SplitOperand:
    """Split rows into halves, without gradients.

    Parameters
    ----------
    x : [..., C]
        Rows, float32. C is at most 4096.

    Returns
    -------
    SplitOperand
        Halves of the same shape, contiguous.

    Raises
    ------
    InputError
        If the dtype or the number of channels is not supported.
    BackendError
        If the tensor is not on a GPU.
    """
    check_device(x)
    channels = x.shape[-1]
    if x.dtype != torch.float32:
        raise InputError(f"x is {x.dtype}: use float32")
    if channels > _MOST_CHANNELS:
        raise InputError(f"the rows have {channels} channels: use at most {_MOST_CHANNELS}")
    found = empty_split(x.shape, x.device)
    if not x.numel():
        return found
    x, block = x.contiguous(), triton.next_power_of_2(channels)
    rows = max(1, _ELEMENTS // block)
    n_rows = x.numel() // channels
    with torch.cuda.device_of(x):
        _split_rows_fwd_kernel[(triton.cdiv(n_rows, rows),)](
            x, *found, n_rows, CHANNELS=channels, C=block, M=rows
        )
    return found


def empty_split(shape: torch.Size, device: torch.device) -> SplitOperand:
    """Return uninitialized halves of a shape."""
    high, low = torch.empty((2, *shape), dtype=torch.float16, device=device)
    return SplitOperand(high, low, torch.empty(shape[:-1], device=device))


def split_linear(x: SplitOperand, weight: SplitOperand, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map to split rows, without gradients.

    Parameters
    ----------
    x : SplitOperand [..., K]
        Rows. K is a multiple of 8.
    weight : SplitOperand [C, K]
        Map.
    bias : [C], optional
        Added to the result.

    Returns
    -------
    float32 [..., C]
        Results, contiguous.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> x, weight = torch.randn(5, 64, device="cuda"), torch.randn(32, 64, device="cuda")
    >>> split_linear(split_rows(x), split_rows(weight)).shape
    torch.Size([5, 32])
    """
    _check(x, weight, bias)
    n_out = len(weight.high)
    out = torch.empty((*x.high.shape[:-1], n_out), device=x.high.device)
    if out.numel():
        n_rows = out.numel() // n_out
        launch_split_linear(x, weight, bias, out, Tile.of(n_rows, n_out, x.high))
    return out


def linear_map(x: Tensor, weight: Tensor | SplitOperand, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map [C, K] to rows [..., K], which are split or rounded as the weight is.

    The result is float32 if the weight is split, and has the dtype of the weight otherwise.
    """
    if isinstance(weight, Tensor):
        return linear(x.to(weight.dtype), weight, bias)
    return split_linear(split_rows(x), weight, bias)


def launch_split_linear(
    x: SplitOperand, weight: SplitOperand, bias: Tensor | None, out: Tensor, tile: Tile
) -> None:
    """Write `split_linear` to ``out`` with the given block sizes."""
    n_out, n_in = weight.high.shape
    n_rows = out.numel() // n_out
    described = has_descriptors(out)
    rows, columns = (tile.rows, tile.channels), (tile.columns, tile.channels)
    programs = triton.cdiv(n_rows, tile.rows) * triton.cdiv(n_out, tile.columns)
    with torch.cuda.device_of(out):
        _split_linear_fwd_kernel[(programs,)](
            given(x.high.view(n_rows, n_in), rows, described),
            given(x.low.view(n_rows, n_in), rows, described),
            given(weight.high, columns, described),
            given(weight.low, columns, described),
            x.unit,
            weight.unit,
            bias,
            out,
            n_rows,
            n_out,
            n_in,
            DESCRIBED=described,
            M=tile.rows,
            N=tile.columns,
            K=tile.channels,
            STAGES=tile.stages,
            LOSS=loss_of(out).halves,
            num_warps=tile.warps,
        )


def _check(x: SplitOperand, weight: SplitOperand, bias: Tensor | None) -> None:
    """Check that the arguments of `split_linear` fit together."""
    check_device(*x, *weight, *([] if bias is None else [bias]))
    check_shape("weight.high", weight.high, ("C", "K"))
    n_out, n_in = weight.high.shape
    check_shape("x.high", x.high, (*x.high.shape[:-1], n_in))
    for name, rows in {"x": x, "weight": weight}.items():
        check_shape(f"{name}.low", rows.low, rows.high.shape)
        check_shape(f"{name}.unit", rows.unit, rows.high.shape[:-1])
        if (rows.high.dtype, rows.low.dtype, rows.unit.dtype) != _DTYPES:
            raise InputError(f"{name} is not split into float16 halves with float32 units")
        if not all(part.is_contiguous() for part in rows):
            raise InputError(f"the halves of {name} must be contiguous")
    if n_in % _ALIGNED:
        raise InputError(f"the rows have {n_in} channels: use a multiple of {_ALIGNED}")
    if bias is not None:
        check_shape("bias", bias, (n_out,))
