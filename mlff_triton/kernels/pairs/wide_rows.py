"""Rows between the products of wide updates: normalization, gates and sums.

    y = (x - mean) / sqrt(variance + eps) weight + bias      normalization
    y = (x - mean) / sqrt(variance + eps) sigmoid(scale) + shift      adaptive normalization
    y = x sigmoid(gate)      gates, or SiLU, as in updates that are added to rows

Results are rounded or split for the product that reads them.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 24 to 26 of the supplement.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.numerics.product import split_along
from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.arguments import FLOATS, norm_arguments
from mlff_triton.kernels.pairs.row_blocks import (
    gated,
    load_rows,
    locate,
    moments,
    offsets_of,
    store_rows,
)
from mlff_triton.kernels.pairs.split_linear import empty_split
from mlff_triton.kernels.pairs.types import Conditions
from mlff_triton.kernels.types.norm import Norm

Map: TypeAlias = Tensor | SplitOperand
Results: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]

_ELEMENTS = 2048  # per program
_MOST_CHANNELS = 4096


class Update(NamedTuple):
    """Update of rows [B, R, S, C], and the logits of its gates."""

    update: Tensor
    gate: Tensor


@triton.jit
def _load(x_ptr, place, strides, channel, CHANNELS: tl.constexpr):
    """Load rows [M, C] at places from `locate`, in float32."""
    return load_rows(x_ptr, offsets_of(place, strides), place[3], channel, CHANNELS)


@triton.jit
def _store_back(y, x_ptr, place, strides, channel, CHANNELS: tl.constexpr):
    """Store rows [M, C] at places from `locate`, rounded to the dtype of x."""
    store_rows(y, x_ptr, offsets_of(place, strides), place[3], channel, CHANNELS)


@triton.jit
def _store(y, out_ptr, low_ptr, unit_ptr, inside, channel, CHANNELS: tl.constexpr):
    """Store rows [M, C] contiguously, split if ``low_ptr`` is not None."""
    M: tl.constexpr = y.shape[0]
    place = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    stored = inside[:, None] & (channel < CHANNELS)[None, :]
    offsets = place[:, None] * CHANNELS + channel[None, :]
    if low_ptr is None:
        tl.store(out_ptr + offsets, y.to(out_ptr.dtype.element_ty), stored)
    else:
        high, low, unit = split_along(tl.where(stored, y, 0.0), 1)
        tl.store(out_ptr + offsets, high, stored)
        tl.store(low_ptr + offsets, low, stored)
        tl.store(unit_ptr + place[:, None], unit, inside[:, None])


@triton.jit
def _norm_fwd_kernel(
    x_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    low_ptr,
    unit_ptr,
    update_ptr,
    gate_ptr,
    n_rows,
    shape,
    x_strides,
    scale_strides,
    shift_strides,
    update_strides,
    gate_strides,
    EPS: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    CHANNELS: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    """Write out [B, R, S, CHANNELS] from x, scale and shift of this shape.

    The scales are logits if ADAPTIVE, and shifts may be None. Unless it is None, an update of this
    shape is multiplied by the sigmoid of a gate and added to x first. If ``low_ptr`` is not None,
    the rows are split, and their high halves are ``out``. Grid: (blocks of M rows,).
    """
    place, channel = locate(n_rows, shape, M), tl.arange(0, C)
    x = _load(x_ptr, place, x_strides, channel, CHANNELS)  # [M, C]
    if update_ptr is not None:
        update = _load(update_ptr, place, update_strides, channel, CHANNELS)
        gate = _load(gate_ptr, place, gate_strides, channel, CHANNELS)
        x += gated(update, gate, gate_ptr.dtype.element_ty == tl.float32)
        _store_back(x, x_ptr, place, x_strides, channel, CHANNELS)
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    exact: tl.constexpr = low_ptr is not None or out_ptr.dtype.element_ty == tl.float32
    mean, rstd = moments((x,), CHANNELS, EPS, exact)
    scale = _load(scale_ptr, place, scale_strides, channel, CHANNELS)
    y = (x - mean[:, None]) * rstd[:, None]
    y = gated(y, scale, exact) if ADAPTIVE else y * scale
    if shift_ptr is not None:
        y += _load(shift_ptr, place, shift_strides, channel, CHANNELS)
    _store(y, out_ptr, low_ptr, unit_ptr, place[3], channel, CHANNELS)


@triton.jit
def _gated_fwd_kernel(
    x_ptr,
    gate_ptr,
    factor_ptr,
    out_ptr,
    low_ptr,
    unit_ptr,
    n_rows,
    shape,
    x_strides,
    gate_strides,
    out_strides,
    SWISH: tl.constexpr,
    ADDED: tl.constexpr,
    CHANNELS: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    """Write ``x sigmoid(gate)`` to out, all [B, R, S, CHANNELS].

    The product is multiplied by the gate if SWISH, by a factor with the strides of x unless that is
    None, and added to ``out`` if ADDED. Other results are contiguous, and split if ``low_ptr`` is
    not None. Grid: (blocks of M rows,).
    """
    place, channel = locate(n_rows, shape, M), tl.arange(0, C)
    x = _load(x_ptr, place, x_strides, channel, CHANNELS)  # [M, C]
    if factor_ptr is not None:
        x *= _load(factor_ptr, place, x_strides, channel, CHANNELS)
    gate = _load(gate_ptr, place, gate_strides, channel, CHANNELS)
    exact: tl.constexpr = gate_ptr.dtype.element_ty == tl.float32
    y = gated(gate, gate, exact) * x if SWISH else gated(x, gate, exact)
    if ADDED:
        y += _load(out_ptr, place, out_strides, channel, CHANNELS)
        _store_back(y, out_ptr, place, out_strides, channel, CHANNELS)
    else:
        _store(y, out_ptr, low_ptr, unit_ptr, place[3], channel, CHANNELS)


def adaptive_norm(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """Normalize rows, then scale them by sigmoids and shift them, without gradients.

    Parameters
    ----------
    x, scale, shift : [B, R, S, C]
        Rows, logits of their scales, and their shifts; float16, bfloat16 or float32, each with any
        strides but contiguous channels. C is at most 4096.
    eps : float
        Added to the variances.
    dtype : torch.dtype
        Dtype of the result.

    Returns
    -------
    [B, R, S, C]
        Normalized rows, contiguous.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    _launch_norm(x, scale, shift, eps, (out, None, None))
    return out


def adapted(x: Tensor, conditions: Conditions, weight: Map, update: Update | None = None) -> Map:
    """Normalize rows with their conditions, and round or split them for their product.

    An update is added to the rows first, in place.
    """
    scale, shift, _, eps = conditions
    found = _empty_operand(x, weight)
    _launch_norm(x, scale, shift, eps, _results(found), update)
    return found


def normalized(x: Tensor, norm: Norm, weight: Map) -> Map:
    """Normalize rows [B, R, S, C], and round or split them for their product with a weight."""
    scale, shift = norm_arguments(norm)
    found = _empty_operand(x, weight)
    shift = None if shift is None else shift.expand(x.shape)
    _launch_norm(x, scale.expand(x.shape), shift, norm[2], _results(found), adaptive=False)
    return found


def _empty_operand(x: Tensor, weight: Map) -> Map:
    """Return uninitialized rows of the shape of x for a product with a weight."""
    if isinstance(weight, Tensor):
        return torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    return empty_split(x.shape, x.device)


def _results(rows: Map) -> Results:
    return (rows, None, None) if isinstance(rows, Tensor) else rows


def _launch_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    eps: float,
    out: Results,
    update: Update | None = None,
    *,
    adaptive: bool = True,
) -> None:
    given = {} if update is None else update._asdict()
    if shift is not None:
        given["shift"] = shift
    _check(x=x, scale=scale, **given)
    if not x.numel():
        return
    n_rows, block, rows, warps = _blocks(x)
    with torch.cuda.device_of(x):
        _norm_fwd_kernel[(triton.cdiv(n_rows, rows),)](
            x,
            scale,
            shift,
            *out,
            *(update or (None, None)),
            n_rows,
            x.shape[1:3],
            x.stride()[:-1],
            scale.stride()[:-1],
            (x if shift is None else shift).stride()[:-1],
            *(part.stride()[:-1] for part in update or (x, x)),
            EPS=eps,
            ADAPTIVE=adaptive,
            CHANNELS=x.shape[-1],
            C=block,
            M=rows,
            num_warps=warps,
        )


def gated_rows(
    x: Tensor, gate: Tensor, weight: Map, *, swish: bool = False, factor: Tensor | None = None
) -> Map:
    """Return rows times gates, rounded or split for their product with a weight.

    Gates are activated by SiLU if ``swish``. The rows are multiplied by ``factor``, which has their
    strides.
    """
    found = _empty_operand(x, weight)
    _launch_gated(x, gate, factor, _results(found), swish=swish)
    return found


def add_(x: Tensor, update: Update) -> Tensor:
    """Add an update to rows in place, and return the rows."""
    _launch_gated(*update, None, (x, None, None), added=True)
    return x


def _launch_gated(
    x: Tensor,
    gate: Tensor,
    factor: Tensor | None,
    out: Results,
    *,
    swish: bool = False,
    added: bool = False,
) -> None:
    _check(x=x, gate=gate)
    if added:
        _check(x=x, out=out[0])
    if not x.numel():
        return
    n_rows, block, rows, warps = _blocks(x)
    with torch.cuda.device_of(x):
        _gated_fwd_kernel[(triton.cdiv(n_rows, rows),)](
            x,
            gate,
            factor,
            *out,
            n_rows,
            x.shape[1:3],
            x.stride()[:-1],
            gate.stride()[:-1],
            out[0].stride()[:-1],
            SWISH=swish,
            ADDED=added,
            CHANNELS=x.shape[-1],
            C=block,
            M=rows,
            num_warps=warps,
        )


def _blocks(x: Tensor) -> tuple[int, int, int, int]:
    """Return the number of rows, their block of channels, and rows and warps per program."""
    block = triton.next_power_of_2(x.shape[-1])
    return x[..., 0].numel(), block, max(1, _ELEMENTS // block), 8 if block > _ELEMENTS else 4


def _check(**tensors: Tensor) -> None:
    """Check that tensors of rows have one shape, supported dtypes and contiguous channels."""
    shape = next(iter(tensors.values())).shape
    for name, x in tensors.items():
        check_shape(name, x, ("B", "R", "S", "C"))
        check_shape(name, x, shape)
        if x.dtype not in FLOATS:
            raise InputError(f"{name} is {x.dtype}: use float16, bfloat16 or float32")
        if x.stride(-1) != 1 and x.shape[-1] > 1:
            raise InputError(f"the channels of {name} must be contiguous")
    check_device(*tensors.values())
    if shape[-1] > _MOST_CHANNELS:
        raise InputError(f"the rows have {shape[-1]} channels: use at most {_MOST_CHANNELS}")
