"""Sums of outer products of coupled rows and hidden values, by receiver, as halves.

    S_i[c, k] = sum_e z_e[c] h_e[k]        t_i[c] = sum_e z_e[c]

over the edges e of receiver i, for the columns c of coupled rows and hidden values k. Sums are
written as halves with one unit per column c, as `mlff_triton.kernels.convolution.contracted_sums`
reads them. Coupled rows are split into halves, too, with one unit per column and chunk of edges.
All values of both factors are below 2^15, so the number of edges bounds the sum, and no second pass
is needed to find its unit.

If the edges of a receiver fit in one matrix product, its sums are written block after block.
Programs then take half the registers, and twice as many run at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.blocks import block_side
from mlff_triton.kernels.common.hardware import register_limit
from mlff_triton.kernels.convolution.contraction_plan import COLUMNS, ContractionPlan
from mlff_triton.kernels.convolution.edge_blocks import EdgeInputs, zeros
from mlff_triton.kernels.convolution.plan import FILLER
from mlff_triton.kernels.numerics.product import inverse, load, product, split, split_along
from mlff_triton.kernels.numerics.split import EXPONENT

_FIELDS = tl.constexpr(7)
_FILLER = tl.constexpr(FILLER)
EDGES = 32
"""Edges per matrix product."""
_BLOCK = 64  # hidden values per matrix product
_SPLIT_EDGES = 32  # per program that splits hidden values
_FEW_REGISTERS = 128
"""Registers per thread if receivers have few edges: with more, too few programs run at once."""
_EXPONENT_BITS = tl.constexpr(0x7F800000)
_SCALE_BITS = tl.constexpr((2 * 127 - 2 * EXPONENT + 12) << 23)  # products are below 2^30
_SMALLEST_UNIT = tl.constexpr(2.0**-126)

_NUMBERS = ("sizes", "first_receiver", "n_receivers", "n_columns", "n_edges", "n_tiles")
"""Arguments that no vectorized access depends on, so multiples of 16 compile no new kernel."""


class SplitHidden(NamedTuple):
    """Hidden values of edges as halves.

    Attributes
    ----------
    values : float16 [2, E, K]
        Halves of hidden values, padded with zeros.
    units : [E]
        Units of halves.
    blocks : tuple of int
        Sizes of the blocks that make up K, powers of two.
    """

    values: Tensor
    units: Tensor
    blocks: tuple[int, ...]


class OuterHalves(NamedTuple):
    """Sums of some receivers, in the order of a plan: by output, receiver, component and row.

    Attributes
    ----------
    values : float16 [2, R, K]
        Halves of sums, for K hidden values and filler.
    units : [R]
        Units of halves.
    totals : [R]
        Sums of coupled rows.
    """

    values: Tensor
    units: Tensor
    totals: Tensor

    @classmethod
    def of(cls, space: Tensor, n_rows: int, width: int) -> OuterHalves:
        """Return uninitialized sums as views of a buffer of bytes."""
        values, units, totals, _ = space.split_with_sizes(
            [4 * n_rows * width, 4 * n_rows, 4 * n_rows, len(space) - n_rows * cls.bytes_of(width)]
        )
        return cls(
            values.view(torch.float16).view(2, n_rows, width),
            units.view(torch.float32),
            totals.view(torch.float32),
        )

    @staticmethod
    def bytes_of(width: int) -> int:
        """Return the number of bytes per row."""
        return 4 * width + 8


@triton.jit
def _split_hidden_kernel(
    hidden_ptr,
    values_ptr,
    units_ptr,
    n_edges,
    n_hidden,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Write halves [2, n_edges, WIDTH] of hidden values, and units. Grid: (tiles of M edges,)."""
    edge = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    k = tl.arange(0, K)[None, :]
    live = edge < n_edges
    values = tl.load(hidden_ptr + edge * n_hidden + k, live & (k < n_hidden), other=0.0)  # [M, K]
    high, low, unit = split_along(values, 1)
    values_ptr += edge * WIDTH + k
    mask = live & (k < WIDTH)
    tl.store(values_ptr, high, mask)
    tl.store(values_ptr + tl.cast(n_edges, tl.int64) * WIDTH, low, mask)
    tl.store(units_ptr + edge, unit, live)


def blocks_of(n_hidden: int) -> tuple[int, ...]:
    """Return sizes of blocks that hold the hidden values of an edge."""
    whole, rest = divmod(n_hidden, _BLOCK)
    return (_BLOCK,) * whole + ((block_side(rest),) if rest else ())


def split_hidden(hidden: Tensor) -> SplitHidden:
    """Split hidden values [E, H] in halves."""
    n_edges, n_hidden = hidden.shape
    blocks = blocks_of(n_hidden)
    width = sum(blocks)
    values = hidden.new_empty(2, n_edges, width, dtype=torch.float16)
    units = hidden.new_empty(n_edges)
    if n_edges:
        with torch.cuda.device_of(hidden):
            _split_hidden_kernel[(triton.cdiv(n_edges, _SPLIT_EDGES),)](
                hidden,
                values,
                units,
                n_edges,
                n_hidden,
                WIDTH=width,
                M=_SPLIT_EDGES,
                K=block_side(width),
                num_warps=4,
            )
    return SplitHidden(values, units, blocks)


@triton.jit
def _load_edges(inputs, units_ptr, start, last, EDGES: tl.constexpr, INDEX: tl.constexpr):
    """Return EDGES edges from ``start`` on: index, validity, sender, and unit of hidden values."""
    edge = start + tl.arange(0, EDGES)
    live = edge < last
    sender = tl.load(inputs[2] + edge, live, other=0).to(INDEX)
    return edge, live, sender, tl.load(units_ptr + edge, live, other=0.0)


@triton.jit
def _load_hidden(hidden, edges, n_edges, BLOCKS: tl.constexpr, K: tl.constexpr):
    """Return halves of hidden values of edges, [edges, block] for each block."""
    pointers = hidden[0] + edges[0].to(tl.int64)[:, None] * K
    n_edges = tl.cast(n_edges, tl.int64)
    found = ()
    for b in tl.static_range(len(BLOCKS)):
        k = tl.arange(0, BLOCKS[b])[None, :]
        found += (load(pointers + k, edges[1][:, None], n_edges, K, "halves"),)  # type: ignore[assignment]
        pointers += k.shape[1]
    return found


@triton.jit
def _coupled_columns(inputs, sizes, table, edges, COMPONENTS: tl.constexpr, INDEX: tl.constexpr):
    """Return columns of coupled rows of edges, [columns, edges]."""
    column, width, matrix, stride = table
    edge, live, sender, _ = edges
    of_node = sender[None, :] * sizes[0] + column
    of_matrix = edge.to(INDEX)[None, :] * sizes[1] + matrix
    z = tl.zeros(of_node.shape, tl.float32)
    for a in tl.static_range(COMPONENTS):
        mask = live[None, :] & (a < width)
        x = tl.load(inputs[0] + of_node + a, mask, other=0.0)
        z += x * tl.load(inputs[1] + of_matrix + a * stride, mask, other=0.0)
    return z


@triton.jit
def _write_many(
    inputs,
    sizes,
    hidden,
    table,
    rows,
    out,
    first,
    last,
    n_edges,
    BLOCKS: tl.constexpr,
    K: tl.constexpr,
    COMPONENTS: tl.constexpr,
    EDGES: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Write the sums of a receiver with any number of edges."""
    COLUMNS: tl.constexpr = rows[0].shape[0]
    totals = tl.zeros((COLUMNS,), tl.float32)
    largest = tl.zeros((COLUMNS, 1), tl.float32)
    sums = ()
    for b in tl.static_range(len(BLOCKS)):
        sums += zeros(COLUMNS, BLOCKS[b], 1, tl.float32)
    edges = _load_edges(inputs, hidden[1], first, last, EDGES, INDEX)
    for start in range(first, last, EDGES):
        h = _load_hidden(hidden, edges, n_edges, BLOCKS, K)
        z = _coupled_columns(inputs, sizes, table, edges, COMPONENTS, INDEX)
        unit = edges[3]
        edges = _load_edges(inputs, hidden[1], start + EDGES, last, EDGES, INDEX)
        totals += tl.sum(z, 1)
        z_high, z_low, z_unit = split_along(z * unit[None, :], 1)
        largest = tl.maximum(largest, z_unit)
        added = ()
        for b in tl.static_range(len(BLOCKS)):
            block = product((z_high, z_low), h[b], "halves")
            added += (tl.fma(block, z_unit, sums[b]),)  # type: ignore[assignment]
        sums = added

    largest = tl.maximum(largest, _SMALLEST_UNIT)
    scale = _store_scales(out, rows, largest, totals, last - first)
    k = 0
    for b in tl.static_range(len(BLOCKS)):
        _store_halves(out, rows, sums[b] * scale, k, K)
        k += BLOCKS[b]


@triton.jit
def _coupled_columns_of_few(
    inputs, sizes, table, n_components, first, last, EDGES: tl.constexpr, INDEX: tl.constexpr
):
    """Return columns of coupled rows of a receiver with few edges, [columns, edges].

    Edges after the last one repeat it, so that loads need no mask per edge.
    """
    column, width, matrix, stride = table
    edge = tl.maximum(tl.minimum(first + tl.arange(0, EDGES), last - 1), 0)
    of_node = tl.load(inputs[2] + edge).to(INDEX)[None, :] * sizes[0] + column
    of_matrix = edge.to(INDEX)[None, :] * sizes[1] + matrix
    z = tl.zeros(of_node.shape, tl.float32)
    for a in range(n_components):
        mask = a < width
        x = tl.load(inputs[0] + of_node + a, mask, other=0.0)
        z += x * tl.load(inputs[1] + of_matrix + a * stride, mask, other=0.0)
    return tl.where((tl.arange(0, EDGES) < last - first)[None, :], z, 0.0)


@triton.jit
def _write_few(
    inputs,
    sizes,
    hidden,
    table,
    n_components,
    rows,
    out,
    first,
    last,
    n_edges,
    BLOCKS: tl.constexpr,
    K: tl.constexpr,
    EDGES: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Write the sums of a receiver with at most EDGES edges, one block after another."""
    z = _coupled_columns_of_few(inputs, sizes, table, n_components, first, last, EDGES, INDEX)
    edge = tl.arange(0, EDGES)
    live = edge < last - first
    of_hidden = tl.load(hidden[1] + first + edge, live, other=0.0)
    high, low, unit = split_along(z * of_hidden[None, :], 1)
    scale = _store_scales(out, rows, unit, tl.sum(z, 1), last - first) * unit
    pointers = hidden[0] + first.to(tl.int64) * K + edge[:, None] * K
    k = 0
    for b in tl.static_range(len(BLOCKS)):
        columns = k + tl.arange(0, BLOCKS[b])[None, :]
        h = load(pointers + columns, live[:, None], tl.cast(n_edges, tl.int64), K, "halves")
        _store_halves(out, rows, product((high, low), h, "halves") * scale, k, K)
        k += BLOCKS[b]


@triton.jit(do_not_specialize=_NUMBERS)
def _outer_halves_kernel(
    inputs,
    sizes,
    hidden,
    row_ptr_ptr,
    columns_ptr,
    out,
    first_receiver,
    n_receivers,
    n_columns,
    n_edges,
    n_tiles,
    BLOCKS: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    COMPONENTS: tl.constexpr,
    EDGES: tl.constexpr,
    FEW: tl.constexpr,
    INDEX: tl.constexpr,
):
    """Write sums of receivers. Grid: (receivers x n_tiles tiles of COLUMNS columns,).

    With FEW, receivers with at most EDGES edges are summed in fewer registers.
    """
    receiver, tile = tl.program_id(0) // n_tiles, tl.program_id(0) % n_tiles
    first = tl.load(row_ptr_ptr + first_receiver + receiver)
    last = tl.load(row_ptr_ptr + first_receiver + receiver + 1)
    columns_ptr += tile * (COLUMNS * _FIELDS)
    n_components = tl.load(columns_ptr + 1)  # of the first column, which has the most
    columns_ptr += tl.arange(0, COLUMNS)[:, None] * _FIELDS
    table = (
        tl.load(columns_ptr),
        tl.load(columns_ptr + 1),
        tl.load(columns_ptr + 2),
        tl.load(columns_ptr + 3),
    )
    begin, length, c = tl.load(columns_ptr + 4), tl.load(columns_ptr + 5), tl.load(columns_ptr + 6)
    row = begin * n_receivers + receiver * length + c - begin
    rows = row, c != _FILLER, tl.cast(n_receivers, tl.int64) * n_columns
    if FEW and last - first <= EDGES:
        _write_few(
            inputs,
            sizes,
            hidden,
            table,
            n_components,
            rows,
            out,
            first.to(tl.int32),
            last.to(tl.int32),
            n_edges,
            BLOCKS,
            K,
            EDGES,
            INDEX,
        )
    else:
        _write_many(
            inputs,
            sizes,
            hidden,
            table,
            rows,
            out,
            first,
            last,
            n_edges,
            BLOCKS,
            K,
            COMPONENTS,
            EDGES,
            INDEX,
        )


@triton.jit
def _store_scales(out, rows, unit, totals, n_edges):
    """Store units and totals of rows, and return the factors that turn sums into halves."""
    row, inside, _ = rows
    scale = _scale_of(n_edges)
    tl.store(out[1] + row, unit * inverse(scale), inside)
    tl.store(out[2] + row, totals[:, None], inside)
    return scale * inverse(unit)


@triton.jit
def _scale_of(n_edges):
    """Return a power of two that brings sums of ``n_edges`` products of halves below 2^15."""
    bits = tl.maximum(n_edges, 1).to(tl.float32).to(tl.int32, bitcast=True) & _EXPONENT_BITS
    return (-bits + _SCALE_BITS).to(tl.float32, bitcast=True)


@triton.jit
def _store_halves(out, rows, x, k, K: tl.constexpr):
    """Store high and low parts of a block of columns that begins at k, in rows of K columns."""
    row, inside, n_rows = rows
    high, low = split(x, "halves")
    pointers = out[0] + row.to(tl.int64) * K + k + tl.arange(0, x.shape[1])[None, :]
    tl.store(pointers, high, inside)
    tl.store(pointers + n_rows * K, low, inside)


def write_outer_halves(
    inputs: EdgeInputs,
    hidden: SplitHidden,
    row_ptr: Tensor,
    first: int,
    plan: ContractionPlan,
    out: OuterHalves,
) -> None:
    """Write the sums of receivers from ``first`` on, as many as fit in ``out``."""
    n_receivers = len(out.units) // plan.n_columns
    elements = max(inputs.node.numel(), inputs.matrices.numel())
    few = len(inputs.senders) <= EDGES * (len(row_ptr) - 1)
    with torch.cuda.device_of(row_ptr):
        for tiles in (plan.columns,) if few else plan.tiles:
            _outer_halves_kernel[(n_receivers * len(tiles.columns),)](
                (inputs.node, inputs.matrices, inputs.senders),
                inputs.sizes[1:3],
                (hidden.values, hidden.units),
                row_ptr,
                tiles.columns,
                tuple(out),
                first,
                n_receivers,
                plan.n_columns,
                len(inputs.senders),
                len(tiles.columns),
                BLOCKS=hidden.blocks,
                K=sum(hidden.blocks),
                COLUMNS=COLUMNS,
                COMPONENTS=tiles.components,
                EDGES=EDGES,
                FEW=few,
                INDEX=tl.int32 if elements < 2**31 else tl.int64,
                num_warps=4,
                num_stages=1,
                **register_limit(_FEW_REGISTERS if few else None),
            )
