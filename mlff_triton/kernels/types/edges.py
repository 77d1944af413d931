"""Edges within the cutoff and their geometry, as the engine's kernels read them.

    r_e = pos_i - pos_j - S_e @ cell      d_e = |r_e|      u_e = r_e / d_e

The edges of receiver ``i`` fill the slots ``slot_begin[i]:slot_end[i]``. The position of each edge
in the radial tables (interval, fraction, width) is computed once per step and serves all layers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Knots(NamedTuple):
    """Knots of a radial table, and an index to find the interval of a distance.

    Attributes
    ----------
    positions : float64 [K + 1]
        Ascending, Å.
    intervals : int32 [C]
        First interval in each of C equal cells between the first knot and the last. Cells are
        narrower than intervals, so a cell overlaps at most two intervals.
    """

    positions: Tensor
    intervals: Tensor

    def locate(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return interval, fraction of the interval and its width for float64 distances [E]."""
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
    slot_begin, slot_end : int32 [N]
        Slots of each receiver's edges. There may be more senders than receivers; receivers come
        first.
    senders : int32 [slots]
        Atom ``j``.
    origin : int32 [slots]
        Slot that holds the intermediate results of the edge.
    reverse : int32 [slots]
        Slot that holds the intermediate results of the opposite edge; indexed by ``origin``.
    interval : int32 [slots]
        Interval of the radial table.
    fraction, width : [slots]
        Fraction of the interval, and its width in Å.
    direction : [3, slots]
        Unit vectors from sender to receiver.
    distance : [slots]
        Å.
    """

    slot_begin: Tensor
    slot_end: Tensor
    senders: Tensor
    origin: Tensor
    reverse: Tensor
    interval: Tensor
    fraction: Tensor
    width: Tensor
    direction: Tensor
    distance: Tensor

    @classmethod
    def of_graph(
        cls, row_ptr: Tensor, senders: Tensor, reverse: Tensor, vectors: Tensor, knots: Knots
    ) -> Edges:
        """Return the edges of a CSR graph.

        Parameters
        ----------
        row_ptr, senders, reverse : int64 [N + 1], [E], [E]
            As in `mlff_triton.neighbors.graph.Graph`.
        vectors : float64 [E, 3]
            ``r_e`` in Å.
        knots : Knots
            Knots of the radial table.
        """
        distance = torch.linalg.vector_norm(vectors, dim=1)
        interval, fraction, width = knots.locate(distance)
        return cls(
            slot_begin=row_ptr[:-1].int(),
            slot_end=row_ptr[1:].int(),
            senders=senders.int(),
            origin=torch.arange(len(senders), device=senders.device, dtype=torch.int32),
            reverse=reverse.int(),
            interval=interval.int(),
            fraction=fraction,
            width=width,
            direction=(vectors / distance[:, None]).T.contiguous(),
            distance=distance,
        )

    def to(self, dtype: torch.dtype) -> Edges:
        """Return the same edges with their geometry in another dtype."""
        return self._replace(
            fraction=self.fraction.to(dtype),
            width=self.width.to(dtype),
            direction=self.direction.to(dtype),
            distance=self.distance.to(dtype),
        )

    def of_first(self, n_atoms: int) -> Edges:
        """Return the edges whose receivers are among the first atoms; slots stay the same."""
        return self._replace(slot_begin=self.slot_begin[:n_atoms], slot_end=self.slot_end[:n_atoms])

    def live(self) -> tuple[Tensor, Tensor]:
        """Return the slots that hold an edge, int64 [E], and their receivers, int64 [E]."""
        count = (self.slot_end - self.slot_begin).long()
        receivers = torch.arange(len(count), device=count.device).repeat_interleave(count)
        first = (count.cumsum(0) - count)[receivers]
        rank = torch.arange(len(receivers), device=count.device) - first
        return self.slot_begin.long()[receivers] + rank, receivers
