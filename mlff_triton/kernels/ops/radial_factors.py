"""Look-up of radial functions, three per channel, in a table of splines.

    f_k(d) = v + h (t (1 - t)^2 m + t^2 (3 - 2 t) s + t^2 (t - 1) m')      t = (d - d_0) / h

with values, slopes and secants at the knots: see
`mlff_triton.kernels.common.reference.radial_table`. Tables come from
`mlff_triton.engine.radial_tables` and include the cutoff function. They are constants here. To
train the functions, compute factors with `linear` instead.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_floats, check_shape
from mlff_triton.kernels.common.operators import by_reference, operator
from mlff_triton.kernels.common.radial import look_up, look_up_with_slope
from mlff_triton.kernels.ops.radial_arguments import check_constants, constant_knots, locate
from mlff_triton.kernels.ops.reference import radial_factors as reference
from mlff_triton.kernels.types.edges import Knots

_EDGES = 16  # per program


@triton.jit
def _radial_factors_fwd_kernel(
    interval_ptr,
    fraction_ptr,
    width_ptr,
    table_ptr,
    out_ptr,
    n_edges,
    F: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Write factors out [n_edges, 3, F] from the positions [n_edges] in a table [K + 1, 3, 3, F].

    Grid: (blocks of edges, blocks of channels).
    """
    edge = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    channel = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    mask = edge < n_edges
    interval = tl.load(interval_ptr + edge, mask, other=0)
    fraction = tl.load(fraction_ptr + edge, mask, other=0.0)
    width = tl.load(width_ptr + edge, mask, other=1.0)

    i, a, s = look_up(table_ptr, interval, fraction, width, channel, mask, F)

    out_ptr += edge.to(tl.int64)[:, None] * (3 * F) + channel[None, :]
    tl.store(out_ptr, i, mask[:, None])
    tl.store(out_ptr + F, a, mask[:, None])
    tl.store(out_ptr + 2 * F, s, mask[:, None])


@triton.jit
def _radial_factors_bwd_kernel(
    grad_ptr,
    interval_ptr,
    fraction_ptr,
    width_ptr,
    table_ptr,
    out_ptr,
    n_edges,
    F: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Write gradients of distances [n_edges] from those of the factors [n_edges, 3, F].

    Positions and table are as in the forward kernel. Grid: (blocks of edges,).
    """
    edge = tl.program_id(0) * BLOCK_E + tl.arange(0, BLOCK_E)
    mask = edge < n_edges
    interval = tl.load(interval_ptr + edge, mask, other=0)
    fraction = tl.load(fraction_ptr + edge, mask, other=0.0)
    width = tl.load(width_ptr + edge, mask, other=1.0)
    grad_ptr += edge.to(tl.int64)[:, None] * (3 * F)

    total = tl.zeros([BLOCK_E, BLOCK_F], out_ptr.dtype.element_ty)
    for start in range(0, F, BLOCK_F):
        channel = start + tl.arange(0, BLOCK_F)
        _, slopes = look_up_with_slope(table_ptr, interval, fraction, width, channel, mask, F)
        pointer = grad_ptr + channel[None, :]
        total += slopes[0] * tl.load(pointer, mask[:, None], other=0.0)
        total += slopes[1] * tl.load(pointer + F, mask[:, None], other=0.0)
        total += slopes[2] * tl.load(pointer + 2 * F, mask[:, None], other=0.0)

    tl.store(out_ptr + edge, tl.sum(total, 1), mask)


def _block_of(channels: int) -> int:
    """Return the largest power of two up to 128 that divides the number of channels."""
    return min(channels & -channels, 128)


def _reference_factors(distance: Tensor, table: Tensor, *knots: Tensor) -> Tensor:
    return reference.radial_factors(distance, table.detach(), constant_knots(*knots))


@operator(
    "radial_factors_backward",
    outputs="distance",
    differentiate=by_reference(_reference_factors, wrt=(0,)),
)
def _radial_factors_backward(
    grad: Tensor, distance: Tensor, table: Tensor, positions: Tensor, intervals: Tensor
) -> Tensor:
    """Return the gradients of the distances [E] from those of the factors."""
    out = distance.new_empty(distance.shape)
    channels = table.shape[3]
    if not grad.numel():
        return out.zero_()
    with torch.cuda.device_of(table):
        _radial_factors_bwd_kernel[(triton.cdiv(len(out), _EDGES),)](
            grad.contiguous(),
            *locate(distance, Knots(positions, intervals)),
            table.contiguous(),
            out,
            len(out),
            F=channels,
            BLOCK_E=_EDGES,
            BLOCK_F=_block_of(channels),
        )
    return out


def _empty_factors(distance: Tensor, table: Tensor, *_: object) -> Tensor:
    return table.new_empty(len(distance), 3, table.shape[3])


@operator("radial_factors", outputs=_empty_factors, gradients=_radial_factors_backward)
def _radial_factors(
    distance: Tensor, table: Tensor, positions: Tensor, intervals: Tensor
) -> Tensor:
    """Return factors [E, 3, F] for distances [E]."""
    out = _empty_factors(distance, table)
    n_edges, _, channels = out.shape
    if out.numel():
        block = _block_of(channels)
        with torch.cuda.device_of(table):
            _radial_factors_fwd_kernel[(triton.cdiv(n_edges, _EDGES), channels // block)](
                *locate(distance, Knots(positions, intervals)),
                table.contiguous(),
                out,
                n_edges,
                F=channels,
                BLOCK_E=_EDGES,
                BLOCK_F=block,
            )
    return out


def radial_factors(distance: Tensor, table: Tensor, knots: Knots) -> Tensor:
    """Look up radial functions, as factors for `message_passing` and `edge_tensors`.

    Parameters
    ----------
    distance : [E]
        Distances in Å, between the first knot and the last; float32 or float64.
    table : [K + 1, 3, 3, F]
        Value, slope and secant of 3 F functions at each knot, from
        `mlff_triton.engine.radial_tables`; of the dtype of the distances. It gets no gradient.
    knots : Knots
        Knots of the table, in float64.

    Returns
    -------
    [E, 3, F]
        Factors; continuous functions of the distance with a continuous first derivative.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or the table requires a gradient.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> knots = Knots(torch.tensor([0.0, 4.0]).double().cuda(), torch.tensor([0]).int().cuda())
    >>> line = torch.tensor([[4.0, -1.0, -1.0], [0.0, -1.0, 0.0]]).cuda()  # 4 - d
    >>> table = line[:, :, None, None].expand(2, 3, 3, 8)
    >>> radial_factors(torch.tensor([1.0, 3.0]).cuda(), table, knots)[:, 0, 0].tolist()
    [3.0, 1.0]
    """
    check_shape("distance", distance, ("E",))
    check_constants(knots, table=table)
    check_floats(distance=distance, table=table)
    factors: Tensor = _radial_factors(distance, table, *knots)
    return factors
