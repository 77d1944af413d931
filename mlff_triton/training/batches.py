"""Labeled structures as one large graph, and batches taken from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mlff_triton.neighbors.graph import Graph
from mlff_triton.training.frames import Array, Frames
from mlff_triton.training.neighbor_lists import neighbor_lists
from mlff_triton.training.padding import fill_batch, pad_graph

LISTED = ("row_ptr", "senders", "shifts", "reverse")  # tensors of a neighbor list
PER_STRUCTURE = (
    *("energy", "q", "cell", "virial", "virial_mask", "weight"),
    *("charges_mask", "dipole", "dipole_mask", "series"),
)
SIGMAS = 4  # standard deviations of the batch size that a padded size covers
CPU = torch.device("cpu")
GROWTH = 1.25  # from one padded size to the next

Batch = dict[str, Tensor]
"""Structures that a model evaluates together, with labels and the neighbor list of their atoms.

The keys are those of `pad_batch` with the masks; ``energy`` in eV, ``forces`` in eV/Å, ``virial``
[B, 3, 3] in eV with ``virial_mask`` where it is known, ``cell`` in Å, ``weight`` in the loss; and
those of `LISTED`. If partial charges or dipoles of any structure are known, also ``charges`` and
``dipole`` in e Å, with ``charges_mask`` and ``dipole_mask`` [B] of the known ones. In batches of
series, ``series`` [B] counts the structures between each one and the first of its series.
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
    """Structures with their neighbor lists.

    Parameters
    ----------
    frames : Frames
        The structures.
    cutoff : float
        Cutoff of the neighbor lists in Å.
    device : torch.device
        Device of the batches. On a GPU, the structures are kept on it as well, unless they fill
        more than half of its free memory. Then batches are made on the CPU, and copied.

    Raises
    ------
    InputError
        If a structure has no neighbor list, for example because two atoms coincide.
    """

    def __init__(self, frames: Frames, cutoff: float, device: torch.device = CPU) -> None:
        self.frames = frames
        self.device = device
        self._of_atoms = {
            "z": torch.from_numpy(frames.numbers),
            "pos": torch.from_numpy(frames.positions),
            "forces": torch.from_numpy(frames.forces),
        }
        volume = np.abs(np.linalg.det(frames.cell))
        virial = frames.stress * volume[:, None, None]
        known = frames.has_stress
        self._of_structures = {
            "energy": torch.from_numpy(frames.energy),
            "q": torch.from_numpy(frames.charge),
            "cell": torch.from_numpy(frames.cell),
            "virial": torch.from_numpy(np.where(known[:, None, None], virial, 0.0)),
            "virial_mask": torch.from_numpy(known),
            "weight": torch.from_numpy(frames.weight),
        }
        if (frames.has_charges | frames.has_dipole).any():
            self._of_atoms["charges"] = torch.from_numpy(np.nan_to_num(frames.charges))
            self._of_structures |= {
                "charges_mask": torch.from_numpy(frames.has_charges),
                "dipole": torch.from_numpy(np.nan_to_num(frames.dipole)),
                "dipole_mask": torch.from_numpy(frames.has_dipole),
            }
        self._graph, edge_start = neighbor_lists(frames, cutoff)
        self._starts = torch.from_numpy(frames.start), edge_start
        self._sizes = self._starts[0].diff(), self._starts[1].diff()  # on the host
        if device.type == "cuda" and 2 * self._bytes < torch.cuda.mem_get_info(device)[0]:
            self._move(device)

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
        self._of_structures["energy"].copy_(torch.from_numpy(energy))

    def size(self, count: int) -> Size:
        """Return a size that nearly all batches of ``count`` structures fit in."""
        return Size.of_most(*self._sizes, count)

    def common_size(self, parts: Sequence[Tensor]) -> Size:
        """Return a size that fits each of some batches."""
        n_atoms, n_edges = ([int(sizes[k].sum()) for k in parts] for sizes in self._sizes)
        structures = 1 + max(map(len, parts))
        others = max(count - len(k) for count, k in zip(n_atoms, parts, strict=True))
        return Size(others + structures + 1, structures, 2 * math.ceil(max(n_edges) / 2))

    def n_atoms(self, chosen: Tensor) -> int:
        """Return the number of atoms of some structures."""
        return int(self._sizes[0][chosen].sum())

    def parts(self, chosen: Tensor, most: int) -> Iterator[Tensor]:
        """Cut structures into batches of at most ``most`` edges, or of single structures."""
        n_atoms, n_edges = self._sizes
        total = torch.maximum(n_atoms, n_edges)[chosen].cumsum(0)
        first, before = 0, 0
        while first < len(chosen):
            last = int(torch.searchsorted(total, before + most, right=True))
            last = max(first + 1, last)
            yield chosen[first:last]
            first, before = last, int(total[last - 1])

    def batch(self, chosen: Tensor, size: Size | None = None, units: Tensor | None = None) -> Batch:
        """Take some structures, with their atoms and edges renumbered.

        Parameters
        ----------
        chosen : int64 [B]
            Their indices.
        size : Size, optional
            Size to which the batch is padded; if too small, the next large enough size of its
            series. Without it, there is no filler.
        units : int64 [B], optional
            Numbers of their series; each series is contiguous.

        Returns
        -------
        Batch
            Tensors on the device. The host does not wait for a GPU that has the structures.
        """
        n_atoms, n_edges = (int(sizes[chosen].sum()) for sizes in self._sizes)
        own = Size(n_atoms, len(chosen), n_edges)
        padded = own if size is None else size
        while not own.fits(padded):
            padded = padded.grown()
        here = self._starts[0].device
        series = {} if units is None else {"series": _there(since_first(units), here)}
        chosen = _there(chosen, here)
        atoms, system, graph = take(self._graph, *self._starts, chosen, own)
        batch = {
            "batch": system,
            **{name: t.index_select(0, atoms) for name, t in self._of_atoms.items()},
            **{name: t.index_select(0, chosen) for name, t in self._of_structures.items()},
            **series,
        }
        size_of = padded.atoms, padded.structures
        batch = fill_batch(batch, len(chosen), *size_of, per_molecule=PER_STRUCTURE)
        graph = pad_graph(graph, padded.atoms, padded.edges)
        batch |= {name: getattr(graph, name) for name in LISTED}
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    @property
    def _bytes(self) -> int:
        tensors = (
            *self._of_atoms.values(),
            *self._of_structures.values(),
            *vars(self._graph).values(),
        )
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    def _move(self, device: torch.device) -> None:
        for tensors in (self._of_atoms, self._of_structures):
            tensors.update({name: tensor.to(device) for name, tensor in tensors.items()})
        self._starts = self._starts[0].to(device), self._starts[1].to(device)
        self._graph = self._graph.map(lambda tensor: _moved(tensor, device))


def units_of(frames: Frames, chosen: Tensor, most: int) -> Tensor:
    """Return the number of the series of each chosen structure, int64 [n].

    Structures without one have a number of their own. Series with more than ``most`` chosen
    structures are cut into several.
    """
    unit = torch.from_numpy(frames.unit)[chosen]
    order, start = _members(unit)
    place = torch.empty_like(unit)
    place[order] = torch.arange(len(unit)) - start[unit[order]]
    piece = place // most
    number: Tensor = torch.unique(unit * (1 + piece.max()) + piece, return_inverse=True)[1]
    return number


def shuffled(
    chosen: Tensor, size: int, seed: int, start: int, units: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield shuffled batches without end, from batch ``start`` on.

    Batch ``k`` depends on the seed and on ``k`` alone. Structures that do not fill a batch at the
    end of an epoch wait for the next one.

    Parameters
    ----------
    chosen : int64 [n]
        Indices of structures.
    size : int
        Structures per batch. A batch has fewer if the next series does not fit.
    seed : int
        Seed of the order.
    start : int
        Number of the first batch.
    units : int64 [n], optional
        Numbers of their series, from 0 on, which stay in one piece.
    """
    size = min(size, len(chosen))
    per_epoch = len(chosen) // size
    order, first_of = _members(torch.arange(len(chosen)) if units is None else units)
    while True:
        epoch, first = divmod(start, per_epoch)
        generator = torch.Generator().manual_seed(seed + epoch)
        drawn = torch.randperm(len(first_of) - 1, generator=generator)
        structures = chosen[order[ragged_range(first_of, drawn)[0]]]
        ends = _lengths(first_of, drawn).cumsum(0)
        done = 0
        for k in range(per_epoch):
            last = int(ends[torch.searchsorted(ends, done + size, right=True) - 1])
            if k >= first:
                yield structures[done:last]
            done = last
        start = (epoch + 1) * per_epoch


def take(
    graph: Graph, atom_start: Tensor, edge_start: Tensor, chosen: Tensor, size: Size | None = None
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
    size : Size, optional
        Their numbers of atoms and edges; without it, the host waits for a GPU.

    Returns
    -------
    atoms, system : int64 [N]
        Index of each atom among all atoms, and index of its structure in ``chosen``.
    Graph
        Neighbor list of these atoms.
    """
    n_atoms, n_edges = (None, None) if size is None else (size.atoms, size.edges)
    atoms, system = ragged_range(atom_start, chosen, n_atoms)
    edges, edge_system = ragged_range(edge_start, chosen, n_edges)
    first_atom, first_edge = _starts(atom_start, chosen), _starts(edge_start, chosen)
    atom_shift = (first_atom - atom_start[chosen]).index_select(0, edge_system)
    edge_shift = (first_edge - edge_start[chosen]).index_select(0, edge_system)
    counts = graph.row_ptr[atoms + 1] - graph.row_ptr[atoms]
    taken = Graph(
        row_ptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        senders=graph.senders.index_select(0, edges) + atom_shift,
        shifts=_taken_shifts(graph.shifts, edges),
        reverse=graph.reverse.index_select(0, edges) + edge_shift,
    )
    return atoms, system, taken


def ragged_range(start: Tensor, rows: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Concatenate ``range(start[r], start[r + 1])`` over the rows.

    Parameters
    ----------
    start : int64 [R + 1]
        Boundaries of all rows.
    rows : int64 [B]
        Indices of the rows to take.
    total : int, optional
        Number of members; without it, the host waits for a GPU.

    Returns
    -------
    members, owner : int64
        The concatenated ranges, and the index in ``rows`` of each member.
    """
    lengths = _lengths(start, rows)
    owner = torch.arange(len(rows), device=rows.device).repeat_interleave(
        lengths, output_size=total
    )
    offset = start[rows] - _starts(start, rows)
    return torch.arange(len(owner), device=rows.device) + offset.index_select(0, owner), owner


def _members(unit: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order that sorts by units [n], and the first member [U + 1] of each of them."""
    count = torch.bincount(unit)
    return unit.argsort(stable=True), torch.cat([count.new_zeros(1), count.cumsum(0)])


def since_first(units: Tensor) -> Tensor:
    """Return the number of rows between each row and the first row with its unit."""
    rows = torch.arange(len(units))
    begins = torch.ones_like(units, dtype=torch.bool)
    begins[1:] = units[1:] != units[:-1]
    return rows - torch.where(begins, rows, 0).cummax(0).values


def _starts(start: Tensor, rows: Tensor) -> Tensor:
    """Return the start of each row after the rows are concatenated."""
    lengths = _lengths(start, rows)
    return lengths.cumsum(0) - lengths


def _lengths(start: Tensor, rows: Tensor) -> Tensor:
    return start[rows + 1] - start[rows]


def _there(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device, without waiting for a GPU."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; rows that share memory still do."""
    is_shared = tensor.stride(0) == 0
    return tensor[:1].to(device).expand_as(tensor) if is_shared else tensor.to(device)


def _taken_shifts(shifts: Tensor, edges: Tensor) -> Tensor:
    """Return the translations of some edges; the edges may share one row."""
    if shifts.stride(0) == 0:
        return shifts[:1].long().expand(len(edges), 3)
    return shifts[edges].long()


def _bound(sizes: Tensor, count: int) -> int:
    """Return a bound on the sum of ``count`` sizes that are drawn at random."""
    mean, spread = float(sizes.mean()), float(sizes.std(correction=0))
    return math.ceil(count * mean + SIGMAS * math.sqrt(count) * spread)
