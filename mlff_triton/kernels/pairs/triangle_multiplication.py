"""Triangle multiplication: updates of pairs from the two other edges of all triangles.

    x = norm(z)      [a, b] = mask (W x) sigmoid(G x)
    outgoing   t_ij = sum_k a_ik b_jk
    incoming   t_ij = sum_k a_ki b_kj
    z_ij <- z_ij + (W' norm(t_ij)) sigmoid(G' x_ij)

The sums over triangles are one product of matrices per channel. A library computes them in half
precision and for few tokens, and `plane_products` otherwise. The kernel before it normalizes pairs
and writes the factors a and b channel by channel, with sides padded so that all rows are aligned.
The kernel after it normalizes the products over channels, and adds the update in place. Neither
normalized pairs nor gates are stored.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 12 and 13 of the supplement.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.dense import check_same
from mlff_triton.kernels.common.hardware import has_large_memory, register_limit
from mlff_triton.kernels.numerics.operands import takes_halves, weight_operands
from mlff_triton.kernels.numerics.product import split
from mlff_triton.kernels.numerics.rounding import loss_of
from mlff_triton.kernels.pairs.arguments import FLOATS, check_norm, check_rows, norm_arguments
from mlff_triton.kernels.pairs.plane_products import plane_products
from mlff_triton.kernels.pairs.row_blocks import (
    chunk,
    gated,
    joined,
    load_again,
    load_chunks,
    multiply_rows,
    multiply_twice,
    normalize,
)
from mlff_triton.kernels.pairs.types import TriangleWeights

_ALIGNMENT = 16  # elements; Triton compiles wide accesses for multiples
_FEWEST_TOKENS = 64
_CHANNELS = (16, 32, 64, 128, 256)
_WARP = tl.constexpr(32)  # threads
_WIDE_ACCESS = tl.constexpr(16)  # bytes of the widest access of a thread
_PLACES = tl.constexpr(16)  # adjacent ones that a warp reads of each channel


@triton.jit
def _locate(n, side, M: tl.constexpr):
    """Return the places [M] of pairs in planes and in rows of pairs, and a mask of existing pairs.

    They fit in 32 bits, in which divisions are much faster. Offsets of channels do not, so the
    places are returned in 64 bits.
    """
    place = tl.program_id(0) * M + tl.arange(0, M)
    i, j = place // side, place % side
    return place.to(tl.int64), (i * n + j).to(tl.int64), (i < n) & (j < n)


@triton.jit
def _triangle_factors_fwd_kernel(
    z_ptr,
    mask_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    inputs_ptr,
    planes_ptr,
    n,
    side,
    EPS: tl.constexpr,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    C: tl.constexpr,
    HIDDEN: tl.constexpr,
    CHUNK: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Write planes [2, B, HIDDEN, side, side], zero beyond the first ``n`` rows and columns.

    If factors in float32 are split, these are [2, 2, B, HIDDEN, side, side], with the high and the
    low half of each. Reads pairs z [B, n, n, C], mask [B, n, n] or None, and the `joined` weights
    [4 HIDDEN, C] of factors and gates, from `weight_operands`. Grid: (blocks of M places of a
    plane, B).
    """
    half: tl.constexpr = inputs_ptr.dtype.element_ty
    EXACT: tl.constexpr = HALVES or half == tl.float32
    SPLIT: tl.constexpr = EXACT and planes_ptr.dtype.element_ty == tl.float16
    batch, batches = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    place, pair, inside = _locate(n, side, M)
    pair += batch * n * n
    kept = inside.to(tl.float32)
    if mask_ptr is not None:
        kept = tl.load(mask_ptr + pair, inside, other=0).to(tl.float32)
    x = load_chunks(z_ptr, pair * C, inside, C, C, CHUNK)
    x = normalize(x, norm_weight_ptr, norm_bias_ptr, C, half, EPS, HALVES)
    area = side.to(tl.int64) * side
    for first in range(0, 2 * HIDDEN, K):
        y, gate = multiply_twice(x, inputs_ptr, first, 2 * HIDDEN, C, HALVES, LOSS, True, K)
        y = gated(y, gate, EXACT) * kept[None, :]  # [K, M]
        factor, channel = first // HIDDEN, first % HIDDEN + tl.arange(0, K)
        plane = (factor * (2 * batches if SPLIT else batches) + batch) * HIDDEN + channel
        pointers = planes_ptr + plane[:, None] * area + place[None, :]
        if SPLIT:
            y, low = split(y, "shifted_halves")
            tl.store(pointers + batches * HIDDEN * area, low, (place < area)[None, :])
        tl.store(pointers, y.to(planes_ptr.dtype.element_ty), (place < area)[None, :])


@triton.jit
def _load_columns(sums_ptr, first, area, C: tl.constexpr, CHUNK: tl.constexpr, M: tl.constexpr):
    """Load float32 rows from planes [C, area], for places from ``first`` on, as `load_chunks` does.

    Triton spreads the first axis over the threads of a warp, and the second one over warps. So all
    channels of a place are in one warp, which adds them without the other warps. Each thread has a
    wide access: tiles with fewer elements per thread gave wrong results on an H100 (Triton 3.6).
    The cause is not known.
    """
    WIDTH: tl.constexpr = 8 * _WIDE_ACCESS // sums_ptr.dtype.element_ty.primitive_bitwidth
    LANES: tl.constexpr = _WARP * WIDTH // _PLACES  # threads along channels
    lane = tl.arange(0, LANES)[:, None, None, None]
    block = tl.arange(0, M // _PLACES)[None, :, None, None] * _PLACES
    place = first + block + tl.arange(0, _PLACES)[None, None, None, :]
    chunks = ()
    for start in tl.static_range(0, C, CHUNK):
        channel = start + lane + tl.arange(0, CHUNK // LANES)[None, None, :, None] * LANES
        # Places beyond the last tokens are zero. A mask without them would split wide loads.
        x = tl.load(sums_ptr + channel * area + place, place < area, other=0.0).to(tl.float32)
        x = tl.reshape(tl.permute(x, (1, 3, 2, 0)), (M, CHUNK))
        chunks = chunks + (x,)  # type: ignore[assignment] # noqa: RUF005
    return chunks


@triton.jit
def _triangle_update_fwd_kernel(
    z_ptr,
    out_ptr,
    sums_ptr,
    norm_in_weight_ptr,
    norm_in_bias_ptr,
    norm_out_weight_ptr,
    norm_out_bias_ptr,
    project_ptr,
    gate_ptr,
    n,
    side,
    EPS_IN: tl.constexpr,
    EPS_OUT: tl.constexpr,
    HALVES: tl.constexpr,
    LOSS: tl.constexpr,
    SUM_HALVES: tl.constexpr,
    C: tl.constexpr,
    HIDDEN: tl.constexpr,
    CHUNK: tl.constexpr,
    SUM_CHUNK: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Write pairs out [B, n, n, C], the sums of z and updates. Both tensors may be the same.

    Reads sums [B, HIDDEN, side, side], and from `weight_operands` the weights [C, HIDDEN] of sums,
    halves if SUM_HALVES, and [C, C] of gates, halves if HALVES. Grid: (blocks of M places of a
    plane, B).
    """
    batch = tl.program_id(1).to(tl.int64)
    _, pair, inside = _locate(n, side, M)
    pair += batch * n * n
    half: tl.constexpr = gate_ptr.dtype.element_ty
    sum_half: tl.constexpr = project_ptr.dtype.element_ty
    EXACT: tl.constexpr = HALVES or half == tl.float32
    offsets, area = pair * C, side.to(tl.int64) * side
    x = load_chunks(z_ptr, offsets, inside, C, C, CHUNK)
    x = normalize(x, norm_in_weight_ptr, norm_in_bias_ptr, C, half, EPS_IN, HALVES)
    sums_ptr += batch * HIDDEN * area
    sums = _load_columns(sums_ptr, tl.program_id(0) * M, area, HIDDEN, SUM_CHUNK, M)
    sums = normalize(
        sums, norm_out_weight_ptr, norm_out_bias_ptr, HIDDEN, sum_half, EPS_OUT, SUM_HALVES
    )
    for first in range(0, C, K):
        y = multiply_rows(sums, project_ptr, first, C, HIDDEN, SUM_HALVES, LOSS, False, K)  # [M, K]
        gate = multiply_rows(x, gate_ptr, first, C, C, HALVES, LOSS, False, K)
        y = gated(y, gate, EXACT)
        channel = first + tl.arange(0, K)
        y += load_again(z_ptr, offsets, inside, channel, C)
        pointers = out_ptr + offsets[:, None] + channel[None, :]
        tl.store(pointers, y.to(out_ptr.dtype.element_ty), inside[:, None])


class Tile(NamedTuple):
    """Block sizes and options of a launch."""

    pairs: int
    columns: int
    warps: int
    stages: int
    registers: int | None = None

    @classmethod
    def of_factors(cls, channels: int, weight: Tensor) -> Tile:
        """Return block sizes of the first kernel, in the dtype and on the GPU of a weight."""
        stages = 2 if has_large_memory(weight) else 1
        if channels > 128:
            return cls(32, 32, 8, stages)
        return cls(64, min(channels, 32), 4, stages, 168 if weight.element_size() > 2 else 128)

    @classmethod
    def of_update(cls, weight: Tensor) -> Tile:
        """Return block sizes of the last kernel, for the weight [C, H] of sums.

        Each thread loads one wide access of a chunk of sums at least, as `_load_columns` requires.
        """
        channels, hidden = weight.shape
        if max(channels, hidden) <= 128:
            return cls(64, min(channels, 64), 4, 1)
        pairs = 32 if weight.element_size() > 2 else 64
        size = pairs * chunk(hidden, takes_halves(weight)) * weight.element_size()
        return cls(pairs, 64, min(8, size // (_WIDE_ACCESS.value * _WARP.value)), 1)


def triangle_multiplication_(
    z: Tensor,
    weights: TriangleWeights,
    mask: Tensor | None = None,
    *,
    incoming: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Update pairs by triangle multiplication in place, without gradients.

    Parameters
    ----------
    z : [B, N, N, C]
        Pairs, contiguous; float32, or of the dtype of the weights. C is a power of two, 16 to 256.
    weights : TriangleWeights
        Weights, float16, bfloat16 or float32, with H hidden channels: a power of two, 16 to 256.
        Products have this precision, and sums float32. In float16, sums over triangles must not
        exceed 65504; in float32, their factors must not.
    mask : [B, N, N], optional
        Factor of the pairs that are multiplied; 1 by default.
    incoming : bool
        Sum over incoming instead of outgoing edges.
    out : [B, N, N, C], optional
        Tensor for the updated pairs, contiguous, with a dtype allowed for ``z``; ``z`` by default.

    Returns
    -------
    [B, N, N, C]
        ``out``.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or pairs are not contiguous.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> z = torch.randn(1, 7, 7, 16, device="cuda")
    >>> norm = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda"), 1e-5
    >>> maps = (torch.randn(n, 16, device="cuda") / 4 for n in (32, 32, 16, 16))
    >>> triangle_multiplication_(z, TriangleWeights(norm, norm, *maps)).shape
    torch.Size([1, 7, 7, 16])
    """
    out = z if out is None else out
    _check(z, weights, mask, out)
    if not z.numel():
        return out
    batches, n, _, channels = z.shape
    planes = _factors(z, weights, mask)
    a, b = planes.flatten(-4, -3)
    if a.dim() == 4:
        sums = plane_products(a, b, turned=incoming)
    else:
        sums = torch.bmm(a.mT, b) if incoming else torch.bmm(a, b.mT)
    side, hidden = planes.shape[-1], weights.project_out.shape[1]
    tile = Tile.of_update(weights.project_out)
    halves, sum_halves = takes_halves(weights.gate_out), takes_halves(weights.project_out)
    with torch.cuda.device_of(z):
        _triangle_update_fwd_kernel[(triton.cdiv(n * side, tile.pairs), batches)](
            z,
            out,
            sums,
            *norm_arguments(weights.norm_in),
            *norm_arguments(weights.norm_out),
            *_update_operands(weights.project_out, weights.gate_out),
            n,
            side,
            EPS_IN=weights.norm_in[2],
            EPS_OUT=weights.norm_out[2],
            HALVES=halves,
            LOSS=loss_of(z).halves,
            SUM_HALVES=sum_halves,
            C=channels,
            HIDDEN=hidden,
            CHUNK=chunk(channels, halves),
            SUM_CHUNK=chunk(hidden, sum_halves),
            M=tile.pairs,
            K=min(tile.columns, channels),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out


def _update_operands(project: Tensor, gate: Tensor) -> list[Tensor]:
    """Return both weights as the last kernel reads them, split in one launch if both are split."""
    if takes_halves(project) == takes_halves(gate):
        return weight_operands(project, gate, halves=takes_halves(gate))
    return [x for w in (project, gate) for x in weight_operands(w, halves=takes_halves(w))]


def _factors(z: Tensor, weights: TriangleWeights, mask: Tensor | None) -> Tensor:
    """Return the gated factors a and b of all pairs, [2, B, H, side, side] with aligned rows.

    In float32, each factor is split into two halves, [2, 2, B, H, side, side], unless tokens are
    few: sums over few tokens are more exact without halves.
    """
    batches, n, _, channels = z.shape
    project, hidden = weights.project_in, len(weights.project_in) // 2
    halves = project.dtype == torch.float32 and n >= _FEWEST_TOKENS
    side = triton.cdiv(n, _ALIGNMENT) * _ALIGNMENT
    shape = (2, batches, hidden, side, side)
    if halves:
        planes = project.new_empty(2, *shape, dtype=torch.float16)
    else:
        planes = project.new_empty(shape)
    tile = Tile.of_factors(max(channels, hidden), project)
    with torch.cuda.device_of(z):
        _triangle_factors_fwd_kernel[(triton.cdiv(side * side, tile.pairs), batches)](
            z,
            None if mask is None else mask.contiguous(),
            *norm_arguments(weights.norm_in),
            *weight_operands(joined(project, weights.gate_in), halves=takes_halves(project)),
            planes,
            n,
            side,
            EPS=weights.norm_in[2],
            HALVES=takes_halves(project),
            LOSS=loss_of(project).halves,
            C=channels,
            HIDDEN=hidden,
            CHUNK=chunk(channels, takes_halves(project)),
            M=tile.pairs,
            K=min(tile.columns, hidden),
            num_warps=tile.warps,
            num_stages=tile.stages,
            **register_limit(tile.registers),
        )
    return planes


def _check(z: Tensor, weights: TriangleWeights, mask: Tensor | None, out: Tensor) -> None:
    """Check that the arguments of `triangle_multiplication_` fit together."""
    check_shape("z", z, ("B", "N", "N", "C"))
    batches, n, _, channels = z.shape
    check_shape("z", z, (batches, n, n, channels))
    if channels not in _CHANNELS:
        raise InputError(f"the pairs have {channels} channels: use 16, 32, 64, 128 or 256")
    norm_in, norm_out, project_in, gate_in, project_out, gate_out = weights
    check_shape("project_out", project_out, (channels, "H"))
    hidden = project_out.shape[1]
    if hidden not in _CHANNELS:
        raise InputError(f"there are {hidden} hidden channels: use 16, 32, 64, 128 or 256")
    maps = {"project_in": project_in, "gate_in": gate_in}
    check_same(FLOATS, {**maps, "project_out": project_out, "gate_out": gate_out})
    check_rows("z", z, project_in)
    check_rows("out", out, project_in)
    check_shape("out", out, z.shape)
    check_shape("project_in", project_in, (2 * hidden, channels))
    check_shape("gate_in", gate_in, (2 * hidden, channels))
    check_shape("gate_out", gate_out, (channels, channels))
    check_norm("norm_in", norm_in, z)
    check_norm("norm_out", norm_out, project_out)
    if mask is not None:
        check_device(z, mask)
        check_shape("mask", mask, (batches, n, n))
