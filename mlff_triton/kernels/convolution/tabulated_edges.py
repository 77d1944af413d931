"""Positions of edges in a radial table, as weights of cubic Hermite interpolation.

    f(d) = f_k + w_0 f'_k + w_1 s_k + w_2 f'_{k + 1}       k: interval of d, s_k: its secant

For the equations, see `mlff_triton.kernels.common.reference.radial_table`. Weights are computed in
float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.types.edges import Knots

_EDGES = 128  # per program


class TabulatedEdges(NamedTuple):
    """Positions of edges in a radial table, and the table.

    Attributes
    ----------
    interval : int32 [E]
        Interval of each distance.
    factors : [E, 6]
        Factors of slope, secant and next slope in the value, and in the derivative.
    table : [K + 1, 3, weights]
        Value, slope and secant of each weight at the knots.
    """

    interval: Tensor
    factors: Tensor
    table: Tensor


@triton.jit
def _tabulated_edges_kernel(
    distance_ptr,
    positions_ptr,
    intervals_ptr,
    interval_ptr,
    factors_ptr,
    n_edges,
    n_knots,
    n_cells,
    M: tl.constexpr,
):
    """Write intervals [n_edges] and factors [n_edges, 6]. Grid: (blocks of M edges,)."""
    edge = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    live = edge < n_edges
    first = tl.load(positions_ptr)
    last = tl.load(positions_ptr + n_knots - 1)
    distance = tl.load(distance_ptr + edge, live, other=0.0).to(tl.float64)

    cell = (distance - first) * (n_cells * 1.0 / (last - first))
    cell = tl.where(cell > 0, cell, 0.0)  # NaN falls into the first cell
    cell = tl.where(cell < n_cells, cell, n_cells - 1.0).to(tl.int64)
    interval = tl.load(intervals_ptr + cell, live, other=0)
    interval += (distance >= tl.load(positions_ptr + interval + 1)).to(tl.int32)
    interval = tl.minimum(interval, n_knots - 2)
    start = tl.load(positions_ptr + interval)
    h = tl.load(positions_ptr + interval + 1) - start
    t = (distance - start) / h
    t = tl.where(t < 0, 0.0, tl.where(t > 1, 1.0, t))  # NaN stays NaN

    tl.store(interval_ptr + edge, interval, live)
    factors_ptr += edge * 6
    dtype = factors_ptr.dtype.element_ty
    tl.store(factors_ptr, (t * (1 - t) * (1 - t) * h).to(dtype), live)
    tl.store(factors_ptr + 1, (t * t * (3 - 2 * t) * h).to(dtype), live)
    tl.store(factors_ptr + 2, (t * t * (t - 1) * h).to(dtype), live)
    tl.store(factors_ptr + 3, ((1 - t) * (1 - 3 * t)).to(dtype), live)
    tl.store(factors_ptr + 4, (6 * t * (1 - t)).to(dtype), live)
    tl.store(factors_ptr + 5, (t * (3 * t - 2)).to(dtype), live)


def tabulated_edges(distance: Tensor, table: Tensor, knots: Knots) -> TabulatedEdges:
    """Locate distances [E] in a table."""
    n_edges = len(distance)
    interval = distance.new_empty(n_edges, dtype=torch.int32)
    factors = distance.new_empty(n_edges, 6)
    if n_edges:
        with torch.cuda.device_of(distance):
            _tabulated_edges_kernel[(triton.cdiv(n_edges, _EDGES),)](
                distance.contiguous(),
                knots.positions.contiguous(),
                knots.intervals.contiguous(),
                interval,
                factors,
                n_edges,
                len(knots.positions),
                len(knots.intervals),
                M=_EDGES,
                num_warps=4,
            )
    return TabulatedEdges(interval, factors, table.contiguous())
