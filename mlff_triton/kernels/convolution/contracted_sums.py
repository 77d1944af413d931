"""Sums of messages of a fully connected convolution, with weights applied once per receiver.

    y_i[w, m] = sum_r (sum_k W[k, r, w] S_i[m, r, k] + b[r, w] t_i[m, r])

    S_i[m, r, k] = sum_e z_e[m, r] h_e[k]        t_i[m, r] = sum_e z_e[m, r]

with hidden values h, coupled rows z, weight W and bias b. The last layer of the network is linear,
so its weights can be applied after the sum over the edges e of receiver i. This takes two
operations per element of S for each edge, and two per weight and component for each receiver;
messages take two per hidden value and weight for each edge. The sums S of a receiver have many
elements, so this pays only if receivers have many edges. Receivers are taken in groups whose sums
fit in a workspace. Rows are split into parts whose results are added in order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import hardware
from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.convolution.contraction_plan import (
    ContractionPlan,
    Jobs,
    contraction_plan_of,
)
from mlff_triton.kernels.convolution.edge_blocks import EdgeInputs, precision_of
from mlff_triton.kernels.convolution.graphs import reduced
from mlff_triton.kernels.convolution.outer_halves import (
    EDGES,
    OuterHalves,
    blocks_of,
    split_hidden,
    write_outer_halves,
)
from mlff_triton.kernels.convolution.plan import FILLER
from mlff_triton.kernels.convolution.types import TensorProduct
from mlff_triton.kernels.numerics.product import load, product, split_along, untruncated
from mlff_triton.kernels.numerics.rounding import loss_of

_FIELDS = tl.constexpr(6)
_FILLER = tl.constexpr(FILLER)
_ROWS = 64  # pairs of a receiver and a component per program
_WORKSPACE = 2**30
"""Bytes of sums that are kept at a time."""
_WAVES = 4
"""Programs per multiprocessor, below which rows are split among more programs."""

_FEWEST_EDGES, _MOST_EDGES = 16, 4096
"""Mean numbers of edges per receiver between which this is faster than messages."""
_WORTHWHILE = 20_000
"""Smallest number of edges for which this is faster, although it takes more launches."""
_NUMBERS = ("n_receivers", "n_columns", "n_packed", "n_out", "part_size", "n_parts")
"""Arguments that no vectorized access depends on, so multiples of 16 compile no new kernel."""


class _Packed(NamedTuple):
    """Weights of jobs: halves [2, rows, K, channels], units and bias [rows, channels]."""

    values: Tensor
    units: Tensor
    bias: Tensor


@triton.jit
def _pack_kernel(
    weight_ptr,
    bias_ptr,
    source_ptr,
    values_ptr,
    units_ptr,
    packed_bias_ptr,
    n_hidden,
    n_weights,
    n_rows,
    HIDDEN: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
):
    """Write packed weights [2, n_rows, HIDDEN, N], in blocks of K >= HIDDEN. Grid: (n_rows,)."""
    row, n = tl.program_id(0), tl.arange(0, N)
    source = tl.load(source_ptr + row * N + n)
    k = tl.arange(0, K).to(tl.int64)[:, None]
    live = source != _FILLER
    weight = tl.load(
        weight_ptr + k * n_weights + source[None, :], live[None, :] & (k < n_hidden), other=0.0
    )  # [K, N]
    high, low, unit = split_along(weight, 0)
    values_ptr += (row.to(tl.int64) * HIDDEN + k) * N + n[None, :]
    tl.store(values_ptr, high, k < HIDDEN)
    tl.store(values_ptr + tl.cast(n_rows, tl.int64) * HIDDEN * N, low, k < HIDDEN)
    tl.store(units_ptr + row * N + n[None, :], unit)
    tl.store(packed_bias_ptr + row * N + n, tl.load(bias_ptr + source, live, other=0.0))


def _pack(weight: Tensor, bias: Tensor, source: Tensor, width: int) -> _Packed:
    """Split weights into halves, in the order of the rows of jobs, padded to ``width``."""
    n_rows, channels = source.shape
    packed = _Packed(
        weight.new_empty(2, n_rows, width, channels, dtype=torch.float16),
        weight.new_empty(n_rows, channels),
        weight.new_empty(n_rows, channels),
    )
    with torch.cuda.device_of(weight):
        _pack_kernel[(n_rows,)](
            weight,
            bias,
            source,
            *packed,
            *weight.shape,
            n_rows,
            HIDDEN=width,
            K=block_side(width),
            N=channels,
        )
    return packed


@triton.jit
def _load_scales(sums, packed, at, row, live, N: tl.constexpr):
    """Return units and totals of sums, [M] each, and units and bias of weights, [N] each."""
    n = row * N + tl.arange(0, N)
    return (
        tl.load(sums[1] + at, live, other=0.0),
        tl.load(sums[2] + at, live, other=0.0),
        tl.load(packed[1] + n),
        tl.load(packed[2] + n),
    )


@triton.jit(do_not_specialize=_NUMBERS)
def _contraction_kernel(
    sums,
    packed,
    jobs_ptr,
    out_ptr,
    n_receivers,
    n_columns,
    n_packed,
    n_out,
    part_size,
    n_parts,
    M: tl.constexpr,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    K: tl.constexpr,
    EDGES: tl.constexpr,
    LOSS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write partial outputs. Grid: (tiles of M receivers and components, jobs, parts of rows)."""
    jobs_ptr += tl.program_id(1) * _FIELDS
    components, n_rows = tl.load(jobs_ptr), tl.load(jobs_ptr + 1)
    begin, first_packed = tl.load(jobs_ptr + 2), tl.load(jobs_ptr + 3)
    column, count = tl.load(jobs_ptr + 4), tl.load(jobs_ptr + 5)
    i = tl.program_id(0) * M + tl.arange(0, M)
    live = i < n_receivers * components
    n = tl.arange(0, N)
    if tl.program_id(0) * M < n_receivers * components:
        per_part = tl.cdiv(n_rows, n_parts)
        first = tl.minimum(tl.program_id(2) * per_part, n_rows)
        last = tl.minimum(first + per_part, n_rows)
        at = tl.cast(begin, tl.int64) * n_receivers + i.to(tl.int64) * n_rows
        values_ptr = sums[0] + at[:, None] * K
        n_sums = tl.cast(n_receivers, tl.int64) * n_columns
        weight_ptr = packed[0] + tl.cast(first_packed, tl.int64) * K * N + n[None, :]
        n_weights = tl.cast(n_packed, tl.int64) * K
        total = tl.zeros((M, N), ACC)
        following = tl.minimum(first, n_rows - 1)
        scales = _load_scales(sums, packed, at + following, first_packed + following, live, N)
        for row in range(first, last):
            unit, outer, w_unit, bias = scales
            following = tl.minimum(row + 1, n_rows - 1)
            scales = _load_scales(sums, packed, at + following, first_packed + following, live, N)
            scale = unit[:, None] * w_unit[None, :]
            total += outer[:, None] * bias[None, :]
            of_row = tl.zeros((M, N), ACC)  # a sum of few terms loses less to truncation
            x_ptr, w_ptr = values_ptr + row * K, weight_ptr + row * K * N
            for b in tl.static_range(len(BLOCKS)):
                k = tl.arange(0, BLOCKS[b])
                x = load(x_ptr + k[None, :], live[:, None], n_sums, K, "halves")
                w = load(w_ptr + k[:, None] * N, None, n_weights, N, "halves")
                of_row += untruncated(product(x, w, "halves"), BLOCKS[b], LOSS)
                x_ptr += k.shape[0]
                w_ptr += k.shape[0] * N
            total = tl.fma(untruncated(of_row, EDGES, LOSS), scale, total)
        receiver, m = i // components, i % components
        out_ptr += (tl.program_id(2) * tl.cast(part_size, tl.int64)) + column
        pointers = out_ptr + (receiver.to(tl.int64) * n_out + m)[:, None] + n[None, :] * components
        tl.store(pointers, total, live[:, None] & (n < count)[None, :])


def applies_weights_once(hidden: Tensor, weight: Tensor, row_ptr: Tensor) -> bool:
    """Return True if applying weights once per receiver is faster than once per edge."""
    n_edges, n_receivers = len(hidden), len(row_ptr) - 1
    few, many = _FEWEST_EDGES * n_receivers, _MOST_EDGES * n_receivers
    return precision_of(weight) == "halves" and n_edges >= _WORTHWHILE and few <= n_edges <= many


def contracted_sums(
    inputs: EdgeInputs,
    weight: Tensor,
    bias: Tensor,
    row_ptr: Tensor,
    product: TensorProduct,
    reduce: str,
) -> Tensor:
    """Return sums or means of messages [N, output columns], float32."""
    row_ptr, weight, bias = row_ptr.contiguous(), weight.contiguous(), bias.contiguous()
    n_receivers, width = len(row_ptr) - 1, sum(blocks_of(len(weight)))
    plan = contraction_plan_of(product, weight.device)
    per_receiver = plan.n_columns * OuterHalves.bytes_of(width)
    at_once = max(1, min(n_receivers, _WORKSPACE // max(per_receiver, 1)))
    n_parts = _parts_of(plan, at_once, weight)
    n_edges = len(inputs.senders)
    make = weight.new_empty if product.reaches_all and n_edges else weight.new_zeros
    partial = make(n_parts, n_receivers, product.n_outputs)
    if not (n_edges and partial.numel() and plan.n_columns):
        return partial[0]
    hidden = split_hidden(inputs.hidden)
    packed = [_pack(weight, bias, jobs.source, width) for jobs in plan.jobs]
    space = weight.new_empty(at_once * per_receiver, dtype=torch.uint8)
    for first in range(0, n_receivers, at_once):
        n_rows = min(at_once, n_receivers - first) * plan.n_columns
        sums = OuterHalves.of(space, n_rows, width)
        write_outer_halves(inputs, hidden, row_ptr, first, plan, sums)
        for jobs, weights in zip(plan.jobs, packed, strict=True):
            _contract(sums, weights, jobs, partial[:, first:], plan.n_columns, hidden.blocks)
    total = partial.sum(0) if n_parts > 1 else partial[0]
    return reduced(total, row_ptr, reduce)


def _contract(
    sums: OuterHalves,
    packed: _Packed,
    jobs: Jobs,
    out: Tensor,
    n_columns: int,
    blocks: tuple[int, ...],
) -> None:
    """Write the outputs of jobs to the first receivers of ``out`` [parts, receivers, columns]."""
    n_receivers = len(sums.units) // n_columns
    tiles = triton.cdiv(n_receivers * jobs.components, _ROWS)
    with torch.cuda.device_of(out):
        _contraction_kernel[(tiles, len(jobs.table), len(out))](
            tuple(sums),
            tuple(packed),
            jobs.table,
            out,
            n_receivers,
            n_columns,
            len(jobs.source),
            out.shape[2],
            out.stride(0),
            len(out),
            M=_ROWS,
            N=jobs.channels,
            BLOCKS=blocks,
            K=sum(blocks),
            EDGES=EDGES,
            LOSS=loss_of(out).halves,
            ACC=accumulator(out),
            num_warps=4,
            num_stages=_stages(sum(blocks), jobs.channels, out),
        )


def _stages(width: int, channels: int, like: Tensor) -> int:
    """Return the number of pipeline stages whose blocks of sums and weights fit on chip at once."""
    bytes_of_block = 4 * width * (_ROWS + channels)
    fitting = hardware.shared_memory(like) // bytes_of_block - hardware.has_tensor_memory(like)
    return max(1, min(3, fitting))


def _parts_of(plan: ContractionPlan, n_receivers: int, like: Tensor) -> int:
    """Return the number of parts into which rows are split so that programs fill a GPU."""
    programs: int = sum(
        len(jobs.table) * triton.cdiv(n_receivers * jobs.components, _ROWS) for jobs in plan.jobs
    )
    wanted = _WAVES * hardware.multiprocessors(like.device)
    return max(1, min(8, wanted // max(programs, 1)))
