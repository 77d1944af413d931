"""Edges within the cutoff as the kernels of the engine read them, and their geometry.

    r_e = pos_i - pos_j - S_e @ cell      d_e = |r_e|      u_e = r_e / d_e

The edges of receiver ``i`` fill the slots ``begin[i]:end[i]``. Where they lie in the radial table
(interval, fraction of it, width) is worked out once a step, for all layers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Knots(NamedTuple):
    """Where a radial table has its knots, and how the interval of a distance is found.

    Attributes
    ----------
    positions : float64 [K + 1]
        Ascending, Å.
    intervals : int32 [C]
        First interval in each of C even cells from the first knot to the last. Cells are narrower
        than intervals, so that no cell has more than two.
    """

    positions: Tensor
    intervals: Tensor

    def locate(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Interval, fraction of it and its width for float64 distances [E]."""
        first, last = self.positions[0], self.positions[-1]
        count = len(self.intervals)
        cell = ((distance - first) * (count / (last - first))).to(torch.int64)
        interval = self.intervals[cell.clamp(0, count - 1)].long()
        interval = interval + (distance >= self.positions[interval + 1])
        interval = interval.clamp(max=len(self.positions) - 2)
        start = self.positions[interval]
        width = self.positions[interval + 1] - start
        return interval, ((distance - start) / width).clamp(0, 1), width


class Edges(NamedTuple):
    """Directed edges, grouped by receiver.

    Attributes
    ----------
    begin, end : int32 [N]
        Slots of each receiver's edges.
    senders : int32 [slots]
        Atom ``j``.
    origin : int32 [slots]
        Slot at which quantities of this edge are kept from kernel to kernel.
    reverse : int32 [slots]
        Where the opposite edge keeps its own; indexed by ``origin``.
    interval : int32 [slots]
        Interval of the radial table.
    fraction, width : [slots]
        Fraction of that interval, and its width in Å.
    direction : [3, slots]
        Unit vectors from sender to receiver.
    distance : [slots]
        Å.
    """

    begin: Tensor
    end: Tensor
    senders: Tensor
    origin: Tensor
    reverse: Tensor
    interval: Tensor
    fraction: Tensor
    width: Tensor
    direction: Tensor
    distance: Tensor

    def live(self) -> tuple[Tensor, Tensor]:
        """Slots that hold an edge, int64 [E], and the receivers of these edges, int64 [E]."""
        count = (self.end - self.begin).long()
        receivers = torch.arange(len(count), device=count.device).repeat_interleave(count)
        first = (count.cumsum(0) - count)[receivers]
        rank = torch.arange(len(receivers), device=count.device) - first
        return self.begin.long()[receivers] + rank, receivers


def edges_of_graph(
    row_ptr: Tensor, senders: Tensor, reverse: Tensor, vectors: Tensor, knots: Knots
) -> Edges:
    """Edges of a CSR graph.

    Parameters
    ----------
    row_ptr, senders, reverse : int64 [N + 1], [E], [E]
        As in `mlff_triton.Graph`.
    vectors : float64 [E, 3]
        ``r_e`` in Å.
    knots : Knots
        Knots of the radial table.
    """
    distance = torch.linalg.vector_norm(vectors, dim=1)
    interval, fraction, width = knots.locate(distance)
    return Edges(
        begin=row_ptr[:-1].int(),
        end=row_ptr[1:].int(),
        senders=senders.int(),
        origin=torch.arange(len(senders), device=senders.device, dtype=torch.int32),
        reverse=reverse.int(),
        interval=interval.int(),
        fraction=fraction,
        width=width,
        direction=(vectors / distance[:, None]).T.contiguous(),
        distance=distance,
    )


def cast(edges: Edges, dtype: torch.dtype) -> Edges:
    """The same edges with geometry of another dtype."""
    return edges._replace(
        fraction=edges.fraction.to(dtype),
        width=edges.width.to(dtype),
        direction=edges.direction.to(dtype),
        distance=edges.distance.to(dtype),
    )
