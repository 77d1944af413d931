"""Conditioned updates of tokens and atoms: the layers of diffusion transformers.

    y = (x - mean) / sqrt(variance + eps) sigmoid(scale) + shift      adaptive normalization
    x <- x + O (softmax(q k / sqrt(D) + b) v sigmoid(g)) sigmoid(gate)      q, k, v, g = W y
    x <- x + D (silu(G y) (U y)) sigmoid(gate)                        transition

Transitions of Boltz have a second factor (U' y). Scales, shifts and gates are maps of the
conditioning, which does not change from layer to layer: those of all layers can be computed by one
product. Samples can share them as expanded tensors. A library computes the products of these wide
layers, and the kernels here what lies between them.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 24 to 26 of the supplement.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.hardware import allows_tf32
from mlff_triton.kernels.common.scaled_halves import split_along
from mlff_triton.kernels.pairs.arguments import FLOATS
from mlff_triton.kernels.pairs.pair_attention import pair_attention
from mlff_triton.kernels.pairs.row_blocks import gated, load_rows, moments
from mlff_triton.kernels.pairs.split_linear import (
    empty_split,
    linear_map,
    split_linear,
)
from mlff_triton.kernels.pairs.window_attention import window_attention
from mlff_triton.kernels.types.pair_stack import (
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
    Conditions,
    WindowAttentionWeights,
    WindowConditions,
)
from mlff_triton.kernels.types.split_rows import SplitRows

Map: TypeAlias = Tensor | SplitRows
Results: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]

_ELEMENTS = 2048  # per program
_MOST_CHANNELS = 4096


@triton.jit
def _locate(n_rows, shape, M: tl.constexpr):
    """Return the batch, row and token of M places, and which of them exist."""
    rows, length = shape
    place = tl.program_id(0) * M + tl.arange(0, M)
    batch, row = place // length // rows, place // length % rows
    return batch.to(tl.int64), row.to(tl.int64), (place % length).to(tl.int64), place < n_rows


@triton.jit
def _store(y, out_ptr, low_ptr, unit_ptr, inside, channel, CHANNELS: tl.constexpr):
    """Store rows [M, C] contiguously, split if ``low_ptr`` is not None. The others are zero."""
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
def _adaptive_norm_fwd_kernel(
    x_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    low_ptr,
    unit_ptr,
    n_rows,
    shape,
    x_strides,
    scale_strides,
    shift_strides,
    EPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    """Write out [B, R, S, CHANNELS] from x, scale and shift of this shape.

    If ``low_ptr`` is not None, the rows are split, and their high halves are ``out``. Grid: (blocks
    of M rows,).
    """
    batch, row, token, inside = _locate(n_rows, shape, M)
    channel = tl.arange(0, C)
    offsets = batch * x_strides[0] + row * x_strides[1] + token * x_strides[2]
    x = load_rows(x_ptr, offsets, inside, channel, CHANNELS, 1)  # [M, C]
    exact: tl.constexpr = low_ptr is not None or out_ptr.dtype.element_ty == tl.float32
    mean, rstd = moments((x,), CHANNELS, EPS, exact)
    offsets = batch * scale_strides[0] + row * scale_strides[1] + token * scale_strides[2]
    scale = load_rows(scale_ptr, offsets, inside, channel, CHANNELS, 1)
    offsets = batch * shift_strides[0] + row * shift_strides[1] + token * shift_strides[2]
    shift = load_rows(shift_ptr, offsets, inside, channel, CHANNELS, 1)
    y = gated((x - mean[:, None]) * rstd[:, None], scale, exact) + shift
    _store(y, out_ptr, low_ptr, unit_ptr, inside, channel, CHANNELS)


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
    batch, row, token, inside = _locate(n_rows, shape, M)
    channel = tl.arange(0, C)
    offsets = batch * x_strides[0] + row * x_strides[1] + token * x_strides[2]
    x = load_rows(x_ptr, offsets, inside, channel, CHANNELS, 1)  # [M, C]
    if factor_ptr is not None:
        x *= load_rows(factor_ptr, offsets, inside, channel, CHANNELS, 1)
    offsets = batch * gate_strides[0] + row * gate_strides[1] + token * gate_strides[2]
    gate = load_rows(gate_ptr, offsets, inside, channel, CHANNELS, 1)
    exact: tl.constexpr = gate_ptr.dtype.element_ty == tl.float32
    y = gated(gate, gate, exact) * x if SWISH else gated(x, gate, exact)
    if ADDED:
        offsets = batch * out_strides[0] + row * out_strides[1] + token * out_strides[2]
        y += load_rows(out_ptr, offsets, inside, channel, CHANNELS, 1)
        stored = inside[:, None] & (channel < CHANNELS)[None, :]
        pointers = out_ptr + offsets[:, None] + channel[None, :]
        tl.store(pointers, y.to(out_ptr.dtype.element_ty), stored)
    else:
        _store(y, out_ptr, low_ptr, unit_ptr, inside, channel, CHANNELS)


def adaptive_norm(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """Normalize rows, then scale them by gates and shift them, without gradients.

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
    _check(x=x, scale=scale, shift=shift)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    _launch_adaptive_norm(x, scale, shift, eps, (out, None, None))
    return out


def _normalized(x: Tensor, conditions: Conditions, weight: Map) -> Tensor | SplitRows:
    """Normalize rows, and round or split them for their product with a weight."""
    scale, shift, _, eps = conditions
    if isinstance(weight, Tensor):
        return adaptive_norm(x, scale, shift, eps, weight.dtype)
    _check(x=x, scale=scale, shift=shift)
    out = empty_split(x.shape, x.device)
    _launch_adaptive_norm(x, scale, shift, eps, out)
    return out


def _launch_adaptive_norm(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, out: Results
) -> None:
    if not x.numel():
        return
    n_rows, block, rows, warps = _blocks(x)
    with torch.cuda.device_of(x):
        _adaptive_norm_fwd_kernel[(triton.cdiv(n_rows, rows),)](
            x,
            scale,
            shift,
            *out,
            n_rows,
            x.shape[1:3],
            x.stride()[:-1],
            scale.stride()[:-1],
            shift.stride()[:-1],
            EPS=eps,
            CHANNELS=x.shape[-1],
            C=block,
            M=rows,
            num_warps=warps,
        )


def conditioned_attention_(
    x: Tensor,
    conditions: Conditions,
    bias: Tensor,
    weights: ConditionedAttentionWeights,
    mask: Tensor | None = None,
) -> Tensor:
    """Update tokens of samples by conditioned attention in place, without gradients.

    Parameters
    ----------
    x : [B, R, S, C]
        Tokens of R samples; float32, or of the dtype of the weights. C is at most 4096.
    conditions : Conditions
        Terms of the conditioning, which samples may share as expanded tensors.
    bias : [B, H, S, S] or [B, W, H, Q, T]
        Biases of queries and keys, which samples share, finite, of a floating dtype; of all tokens,
        or of those in each window, see `window_attention`.
    weights : ConditionedAttentionWeights
        Weights, float16, bfloat16 or float32, or split. With float32 weights, products follow
        PyTorch's setting of TF32, and those of split ones do not.
    mask : [B, R, S], optional
        Nonzero for tokens that are kept as keys; all by default.

    Returns
    -------
    [B, R, S, C]
        ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    inputs, inputs_bias, out = weights
    channels, heads = x.shape[-1], bias.shape[-3]
    width = _check_maps("inputs", inputs, "out", out, channels) // 4
    _check_map("out", out, (channels, width))
    if not heads or width % heads:
        raise InputError(f"{width} channels of queries are not divisible by {heads} heads")
    products = _product(_normalized(x, conditions, inputs), inputs, inputs_bias)
    q, k, v = products[..., : 3 * width].unflatten(-1, (3, heads, width // heads)).unbind(-3)
    if bias.dim() == 5:
        y = window_attention(q, k, v, bias, mask).flatten(3)
    else:
        tf32 = isinstance(inputs, Tensor) and allows_tf32()
        y = pair_attention(q, k, v, bias, mask, tf32=tf32).flatten(3)
    return _add(x, _product(_gated(y, products[..., 3 * width :], out), out), conditions.gate)


def conditioned_transition_(
    x: Tensor, conditions: Conditions, weights: ConditionedTransitionWeights
) -> Tensor:
    """Update rows by a conditioned SwiGLU transition in place, without gradients.

    Parameters
    ----------
    x : [B, R, S, C]
        Tokens of R samples; float32, or of the dtype of the weights. C is at most 4096.
    conditions : Conditions
        Terms of the conditioning, which samples may share as expanded tensors.
    weights : ConditionedTransitionWeights
        Weights, float16, bfloat16 or float32, or split, with at most 4096 hidden channels.

    Returns
    -------
    [B, R, S, C]
        ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    inputs, down = weights
    rows = _check_maps("inputs", inputs, "down", down, x.shape[-1])
    hidden = _high(down).shape[1]
    _check_map("down", down, (x.shape[-1], hidden))
    if rows not in (2 * hidden, 3 * hidden):
        raise InputError(f"inputs has {rows} rows: use 2 or 3 times {hidden}")
    products = _product(_normalized(x, conditions, inputs), inputs)
    gate, up, *factors = products.split(hidden, -1)
    y = _gated(up, gate, down, swish=True, factor=factors[0] if factors else None)
    return _add(x, _product(y, down), conditions.gate)


def conditioned_windows_(
    x: Tensor,
    conditions: WindowConditions,
    bias: Tensor,
    weights: WindowAttentionWeights,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> Tensor:
    """Update atoms of samples by conditioned attention within windows in place, without gradients.

    Keys have a normalization of their own. Vectors are computed once per atom, not once per window
    that it is a key of.

    Parameters
    ----------
    x : [B, R, W Q, C]
        Atoms of R samples; float32, or of the dtype of the weights. C is at most 4096.
    conditions : WindowConditions
        Terms of the conditioning, which samples may share as expanded tensors.
    bias : [B, W, H, Q, T]
        Biases of the queries and keys of each window, see `window_attention`.
    weights : WindowAttentionWeights
        Weights, float16, bfloat16 or float32, or split.
    mask : [B, R, W Q], optional
        Nonzero for atoms that are kept as keys; all by default.
    starts : int32 [W], optional
        First key of each window, see `window_attention`.

    Returns
    -------
    [B, R, W Q, C]
        ``x``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together.
    BackendError
        If the tensors are not on a GPU.
    """
    queries, queries_bias, keys, out, chained = weights
    check_shape("bias", bias, ("B", "W", "H", "Q", "T"))
    channels, heads = x.shape[-1], bias.shape[2]
    width = _check_maps("queries", queries, "out", out, channels) // 2
    _check_map("keys", keys, (2 * width, channels))
    _check_map("out", out, (channels, width))
    if not heads or width % heads:
        raise InputError(f"{width} channels of queries are not divisible by {heads} heads")
    scale, shift, gate, key_scale, key_shift, eps = conditions
    rows = torch.float32 if isinstance(queries, SplitRows) else queries.dtype
    y = adaptive_norm(x, scale, shift, eps, rows)
    of_keys = adaptive_norm(y if chained else x, key_scale, key_shift, eps, rows)
    q, g = linear_map(y, queries, queries_bias).chunk(2, -1)
    k, v = linear_map(of_keys, keys).chunk(2, -1)
    q, k, v = (part.unflatten(-1, (heads, -1)) for part in (q, k, v))
    y = window_attention(q, k, v, bias, mask, starts=starts).flatten(3)
    return _add(x, _product(_gated(y, g, out), out), gate)


def _high(weight: Map) -> Tensor:
    """Return a weight, or its high half."""
    return weight if isinstance(weight, Tensor) else weight.high


def _check_maps(first: str, inputs: Map, last: str, out: Map, channels: int) -> int:
    """Raise unless two maps have one dtype; return the number of rows of the first one.

    Split maps count as float32.
    """
    dtypes = {x.dtype if isinstance(x, Tensor) else torch.float32 for x in (inputs, out)}
    if len(dtypes) > 1 or not dtypes.issubset(FLOATS):
        raise InputError(f"{first} and {last} must be float16, bfloat16, or float32 or split")
    check_shape(first, _high(inputs), ("rows", channels))
    return len(_high(inputs))


def _check_map(name: str, weight: Map, shape: tuple[int, int]) -> None:
    check_shape(name, _high(weight), shape)


def _product(x: Tensor | SplitRows, weight: Map, bias: Tensor | None = None) -> Tensor:
    """Apply a linear map to rows that were made for it."""
    if isinstance(x, Tensor):
        assert isinstance(weight, Tensor)
        return linear(x, weight, bias)
    assert not isinstance(weight, Tensor)
    return split_linear(x, weight, bias)


def _gated(
    x: Tensor, gate: Tensor, weight: Map, *, swish: bool = False, factor: Tensor | None = None
) -> Tensor | SplitRows:
    """Return rows times gates, rounded or split for their product with a weight.

    Gates are activated by SiLU if ``swish``. The rows are multiplied by ``factor``, which has their
    strides.
    """
    if isinstance(weight, Tensor):
        y = x.new_empty(x.shape)
        _launch_gated(x, gate, factor, (y, None, None), swish=swish)
        return y
    split = empty_split(x.shape, x.device)
    _launch_gated(x, gate, factor, split, swish=swish)
    return split


def _add(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """Add a gated update to rows in place, and return these."""
    _launch_gated(update, gate, None, (x, None, None), added=True)
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
    """Raise unless tensors of rows have one shape, supported dtypes and contiguous channels."""
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
