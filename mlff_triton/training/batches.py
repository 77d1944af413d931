"""Labeled structures as one large graph, and batches taken from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.neighbors.graph import Graph, concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.training.frames import Array, Frames
from mlff_triton.training.padding import pad_batch, pad_graph

LISTED = ("row_ptr", "senders", "shifts", "reverse")  # tensors of a neighbor list
PER_STRUCTURE = ("energy", "q", "cell", "virial", "virial_mask", "weight")
SIGMAS = 4  # standard deviations of the size of batches that a padded size covers
GROWTH = 1.25  # from one padded size to the next

Batch = dict[str, Tensor]
"""Structures that a model evaluates together, with labels and the neighbor list of their atoms.

The keys are those of `pad_batch` with the masks; ``energy`` in eV, ``forces`` in eV/Å, ``virial``
[B, 3, 3] in eV with ``virial_mask`` where it is known, ``cell`` in Å, ``weight`` in the loss; and
those of `LISTED`.
"""


@dataclass(frozen=True)
class Size:
    """Numbers of atoms, structures and edges of a batch."""

    atoms: int
    structures: int
    edges: int

    def fits(self, other: Size) -> bool:
        """Return True if a batch of this size fits into another with the filler that it needs."""
        if self == other:
            return True
        atoms, structures = other.atoms - self.atoms, other.structures - self.structures
        return structures > 0 and atoms >= max(structures, 2) and self.edges <= other.edges

    @classmethod
    def of_most(cls, atoms: Tensor, edges: Tensor, count: int) -> Size:
        """Return a size that nearly all batches of ``count`` structures fit in.

        Numbers of atoms and edges [C] of all structures are given.
        """
        n_atoms, n_edges = (_bound(sizes.double(), count) for sizes in (atoms, edges))
        return cls(n_atoms + 2, count + 1, 2 * math.ceil(n_edges / 2))

    def grown(self) -> Size:
        """Return the next larger size for batches of the same number of structures."""
        edges = 2 * math.ceil(GROWTH * self.edges / 2)
        return replace(self, atoms=math.ceil(GROWTH * self.atoms), edges=edges)


class GraphData:
    """Structures with their neighbor lists, on the CPU.

    Parameters
    ----------
    frames : Frames
        The structures.
    cutoff : float
        Cutoff of the neighbor lists in Å.
    weight : float64 [C], optional
        Weight of each structure in the loss; 1 by default.

    Raises
    ------
    InputError
        If a structure has no neighbor list, since two atoms coincide, for example.
    """

    def __init__(self, frames: Frames, cutoff: float, weight: Tensor | None = None) -> None:
        self.frames = frames
        self.numbers = torch.from_numpy(frames.numbers)
        self.positions = torch.from_numpy(frames.positions)
        self.forces = torch.from_numpy(frames.forces)
        self.atom_start = torch.from_numpy(frames.start)
        volume = np.abs(np.linalg.det(frames.cell))
        virial = frames.stress * volume[:, None, None]
        known = frames.has_stress
        self._of_structures = {
            "energy": torch.from_numpy(frames.energy),
            "q": torch.from_numpy(frames.charge),
            "cell": torch.from_numpy(frames.cell),
            "virial": torch.from_numpy(np.where(known[:, None, None], virial, 0.0)),
            "virial_mask": torch.from_numpy(known),
            "weight": torch.ones(len(frames), dtype=torch.float64) if weight is None else weight,
        }
        graphs = [_graph(frames, k, cutoff) for k in range(len(frames))]
        self.edge_start = torch.tensor([0] + [graph.n_edges for graph in graphs]).cumsum(0)
        self.graph = concatenate(graphs)

    def shift_energies(self, chosen: Array, elements: Sequence[int], energies: Array) -> None:
        """Add an energy of each atom, by its element, to the labels of some structures.

        Parameters
        ----------
        chosen : int64 [n]
            Their indices.
        elements : sequence of int
            Atomic numbers.
        energies : float64 [elements]
            Energies in eV.
        """
        energy = self.frames.energy.copy()
        energy[chosen] += (self.frames.counts(elements) @ energies)[chosen]
        self.frames = replace(self.frames, energy=energy)
        self._of_structures["energy"] = torch.from_numpy(energy)

    def size(self, count: int) -> Size:
        """Return a size that nearly all batches of ``count`` structures fit in."""
        return Size.of_most(self.atom_start.diff(), self.edge_start.diff(), count)

    def batch(self, chosen: Tensor, size: Size | None = None) -> Batch:
        """Take some structures, with their atoms and edges renumbered.

        Parameters
        ----------
        chosen : int64 [B]
            Their indices.
        size : Size, optional
            Size to which the batch is padded, or to the first one of its series that is large
            enough. Without it, there is no filler.
        """
        atoms, system, graph = take(self.graph, self.atom_start, self.edge_start, chosen)
        batch = {
            "z": self.numbers[atoms],
            "pos": self.positions[atoms],
            "batch": system,
            "forces": self.forces[atoms],
            **{name: tensor[chosen] for name, tensor in self._of_structures.items()},
        }
        own = Size(len(atoms), len(chosen), graph.n_edges)
        padded = own if size is None else size
        while not own.fits(padded):
            padded = padded.grown()
        batch = pad_batch(batch, padded.atoms, padded.structures, per_molecule=PER_STRUCTURE)
        graph = pad_graph(graph, padded.atoms, padded.edges)
        return batch | {name: getattr(graph, name) for name in LISTED}


def shuffled(chosen: Tensor, size: int, seed: int, start: int) -> Iterator[Tensor]:
    """Yield shuffled batches without end, from batch ``start`` on.

    Batch ``k`` depends on the seed and on ``k`` alone. Structures that do not fill a batch at the
    end of an epoch wait for the next one.
    """
    size = min(size, len(chosen))
    per_epoch = len(chosen) // size
    while True:
        epoch, first = divmod(start, per_epoch)
        generator = torch.Generator().manual_seed(seed + epoch)
        order = chosen[torch.randperm(len(chosen), generator=generator)]
        for k in range(first, per_epoch):
            yield order[k * size : (k + 1) * size]
        start = (epoch + 1) * per_epoch


def take(
    graph: Graph, atom_start: Tensor, edge_start: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor, Graph]:
    """Take the neighbor lists of some structures, with their atoms and edges renumbered.

    Parameters
    ----------
    graph : Graph
        Neighbor list of all structures.
    atom_start, edge_start : int64 [C + 1]
        First atom and first edge of each structure, with the totals at the end.
    chosen : int64 [B]
        Their indices.

    Returns
    -------
    atoms, system : int64 [N]
        Index of each atom among all, and in ``chosen`` of its structure.
    Graph
        Neighbor list of these atoms.
    """
    atoms, system = ragged_range(atom_start, chosen)
    edges, edge_system = ragged_range(edge_start, chosen)
    first_atom, first_edge = _starts(atom_start, chosen), _starts(edge_start, chosen)
    atom_shift = (first_atom - atom_start[chosen])[edge_system]
    edge_shift = (first_edge - edge_start[chosen])[edge_system]
    counts = graph.row_ptr.diff()[atoms]
    taken = Graph(
        row_ptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        senders=graph.senders[edges] + atom_shift,
        shifts=graph.shifts[edges],
        reverse=graph.reverse[edges] + edge_shift,
    )
    return atoms, system, taken


def ragged_range(start: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate ``range(start[r], start[r + 1])`` over the rows.

    Parameters
    ----------
    start : int64 [R + 1]
        Boundaries of all rows.
    rows : int64 [B]
        Indices of the rows to take.

    Returns
    -------
    members, owner : int64
        The concatenated ranges, and the index in ``rows`` of each member.
    """
    lengths = start.diff()[rows]
    owner = torch.arange(len(rows), device=rows.device).repeat_interleave(lengths)
    offset = start[rows] - _starts(start, rows)
    return torch.arange(len(owner), device=rows.device) + offset[owner], owner


def _starts(start: Tensor, rows: Tensor) -> Tensor:
    """Return the start of each row after the rows are concatenated."""
    lengths = start.diff()[rows]
    return lengths.cumsum(0) - lengths


def _bound(sizes: Tensor, count: int) -> int:
    """Return a bound of the sum of ``count`` sizes, which are drawn at random."""
    mean, spread = float(sizes.mean()), float(sizes.std(correction=0))
    return math.ceil(count * mean + SIGMAS * math.sqrt(count) * spread)


def _graph(frames: Frames, k: int, cutoff: float) -> Graph:
    atoms = slice(frames.start[k], frames.start[k + 1])
    try:
        return neighbor_list(frames.positions[atoms], cutoff, frames.cell[k], frames.pbc[k])
    except InputError as error:
        raise InputError(f"{frames.name[k]}: {error}") from error
