"""Neighbor lists of steps in loops for CPUs, rebuilt only when atoms have moved far enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mlff_triton.engine.batch import Batch, same
from mlff_triton.errors import OverlappingAtomsError
from mlff_triton.kernels.neighbors.cpu.edges import Report, empty_edges, select_edges
from mlff_triton.kernels.neighbors.cpu.search import NeighborRows, search
from mlff_triton.kernels.types.edges import Edges, Knots
from mlff_triton.neighbors.box import Box, FloatArray, deformation
from mlff_triton.neighbors.contacts import Contact
from mlff_triton.neighbors.neighbor_list import MIN_DISTANCE, check_apart, check_pairs, same_point


@dataclass(frozen=True)
class Built:
    """A neighbor list, and the batch that it was built for.

    Attributes
    ----------
    batch : Batch
        The systems at that time.
    rows : NeighborRows
        All pairs within cutoff and skin.
    edges : dict of float to Edges
        Memory for the edges within each cutoff in Å.
    """

    batch: Batch
    rows: NeighborRows
    edges: dict[float, Edges]


@dataclass(frozen=True)
class Frame:
    """Cells, and the positions from which displacements in them are measured.

    Attributes
    ----------
    boxes : tuple of Box
        Cell of each system.
    cells : float64 [B, 3, 3]
        Lattice vectors (rows) in Å.
    anchors : float64 [N, 3]
        Positions for which the list was built, deformed with the cells, Å.
    limits : float64 [B]
        Largest distance in Å that atoms may have from their anchors.
    """

    boxes: tuple[Box, ...]
    cells: FloatArray
    anchors: FloatArray
    limits: FloatArray


class CpuNeighbors:
    """Edges of a batch at any positions, from a reusable list of pairs.

    Parameters
    ----------
    cutoff, skin : float
        Å.
    knots : Knots
        Knots of the radial tables.
    dtype : torch.dtype
        Dtype of the geometry that the network reads.
    n_first : int, optional
        If given, each pair has one of the first ``n_first`` atoms; by default, all atoms.

    Attributes
    ----------
    n_builds : int
        Number of lists built so far.
    lengths : float64 [N] or None
        Length of each atom in Å: two atoms are too close below the sum of their lengths. None if
        only atoms that coincide are refused.
    blamed : int or None
        An atom that was too close to another one.
    """

    def __init__(
        self,
        cutoff: float,
        skin: float,
        knots: Knots,
        dtype: torch.dtype,
        n_first: int | None = None,
    ) -> None:
        self._cutoff, self._skin = cutoff, skin
        self._n_first = n_first
        self._knots, self._dtype = knots, dtype
        self._built: Built | None = None
        self.n_builds = 0
        self.lengths: FloatArray | None = None
        self.blamed: int | None = None

    def update(self, batch: Batch) -> Edges:
        """Return the edges within the cutoff; the next call overwrites them.

        Raises
        ------
        InputError
            If atoms lie too far apart, or have too many neighbors.
        OverlappingAtomsError
            If two atoms coincide or are too close.
        """
        edges, is_new = None, False
        if self._built is not None and self._fits(self._built.batch, batch):
            edges = self._select(batch)
        if edges is None:
            is_new = True
            self._build(batch)
            edges = self._select(batch, is_new=True)
            assert edges is not None
        self._check_apart(batch, is_new=is_new)
        return edges

    def within(self, cutoff: float, batch: Batch) -> Edges:
        """Return the edges within a smaller cutoff of the batch that was updated last."""
        edges = self._select(batch, cutoff, is_new=True)
        assert edges is not None
        return edges

    @staticmethod
    def _fits(old: Batch, new: Batch) -> bool:
        """Return True if the list of one batch can serve another batch."""
        if not same(old.system, new.system):
            return False
        if old.boxes is new.boxes:
            return True
        return all((a.pbc == b.pbc).all() for a, b in zip(old.boxes, new.boxes, strict=True))

    def _build(self, batch: Batch) -> None:
        radius, ends = self._cutoff + self._skin, batch.system_ptr
        for k, box in enumerate(batch.boxes):
            check_pairs(batch.positions[ends[k] : ends[k + 1]], box, radius)
        cells = np.stack([box.cell for box in batch.boxes])
        periodic = np.stack([box.pbc for box in batch.boxes])
        rows = search(batch.positions, ends, cells, periodic, radius, self._n_first)
        kept = batch.with_positions(batch.positions.copy())
        self._built = Built(kept, rows, {})
        self._report = Report.empty(len(batch.numbers))
        self._no_lengths = np.zeros(len(batch.numbers))
        limits = np.full(len(cells), self._skin / 2)
        self._frame = Frame(batch.boxes, cells, kept.positions, limits)
        self.n_builds += 1

    def _deform(self, built: Batch, boxes: tuple[Box, ...]) -> Frame:
        """Return the frame of cells that differ from those the list was built for."""
        radius = self._cutoff + self._skin
        strains, sigmas = zip(*map(deformation, built.boxes, boxes), strict=True)
        anchors = np.einsum("na,nab->nb", built.positions, np.stack(strains)[built.system])
        limits = (np.array(sigmas) * radius - self._cutoff) / 2
        return Frame(boxes, np.stack([box.cell for box in boxes]), anchors, limits)

    def _select(
        self, batch: Batch, cutoff: float | None = None, *, is_new: bool = False
    ) -> Edges | None:
        """Return the edges within a cutoff, or None if the list may be incomplete."""
        assert self._built is not None
        if batch.boxes is not self._frame.boxes:
            self._frame = self._deform(self._built.batch, batch.boxes)
        built, frame = self._built, self._frame
        limit = self._cutoff if cutoff is None else cutoff
        if limit not in built.edges:
            built.edges[limit] = empty_edges(built.rows, self._dtype)
        edges = built.edges[limit]
        atoms = batch.positions, frame.cells, batch.system
        kept = built.rows, frame.anchors, frame.limits
        lengths = self._no_lengths if self.lengths is None else self.lengths
        select_edges(*atoms, *kept, self._knots, limit, lengths, edges, self._report)
        return edges if is_new or self._report.slack.min() > 0 else None

    def _check_apart(self, batch: Batch, *, is_new: bool) -> None:
        """Raise an `OverlappingAtomsError` that names two atoms that coincide or are too close."""
        contact, closest = self._report.contact, self._report.closest
        if self.lengths is not None and contact.min() < 0:
            self.blamed = int(contact.argmin())
            raise OverlappingAtomsError(str(self._contact(batch, self.blamed, self.lengths)))
        if closest.min() < MIN_DISTANCE**2:
            pair = self._contact(batch, int(closest.argmin()), self._no_lengths)
            if is_new:
                self._built = None  # so that the same positions raise the same message
                check_apart(np.array([pair.distance]), np.array([pair[:2]]))
            raise same_point(pair.first, pair.second)

    def _contact(self, batch: Batch, first: int, lengths: FloatArray) -> Contact:
        """Return an atom and the atom closest to it, by their indices in their system."""
        assert self._built is not None
        rows, points, k = self._built.rows, batch.positions, int(batch.system[first])
        row = slice(rows.row_ptr[first], rows.row_ptr[first + 1])
        senders = rows.senders[row]
        vectors = points[first] - points[senders] - rows.shifts[row] @ self._frame.cells[k]
        distances = np.linalg.norm(vectors, axis=1)
        nearest = int((distances - lengths[senders]).argmin())
        begin = int(batch.system_ptr[k])
        return Contact(first - begin, int(senders[nearest]) - begin, float(distances[nearest]))
