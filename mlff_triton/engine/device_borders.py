"""Rows of tensors that processes exchange at the borders of a part on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlff_triton.engine.batch import to_tensor
from mlff_triton.engine.parameters import Parameters
from mlff_triton.engine.part import Exchange, PartAtoms, fetch_rows, reserved, spread
from mlff_triton.kernels.neighbors.shells import name_rows
from mlff_triton.kernels.types.neighbor_matrix import NeighborMatrix


class DeviceBorders:
    """Rows that a part sends to others and receives, in buffers that captured graphs read.

    The first rows of tensors belong to own atoms, in the order of the neighbor matrix, with their
    padding. Rows of other parts follow.

    Parameters
    ----------
    n_rows : int
        Number of atoms and padding.
    device : torch.device
        The GPU.

    Attributes
    ----------
    names : int32 [N]
        Row of the tensors of each atom, in the order of the matrix.
    n_others : int
        Number of rows of other parts.
    """

    def __init__(self, n_rows: int, device: torch.device) -> None:
        self.names = torch.zeros(n_rows, dtype=torch.int32, device=device)
        self.n_others = self._n_near = self._n_given_near = self._n_first = 0
        self._rows = torch.zeros_like(self.names)  # per atom in the user's order
        self._given = torch.zeros(0, dtype=torch.int32, device=device)
        self._given_rows = torch.zeros_like(self._given)
        self._species = torch.zeros_like(self._given)
        self._ghosts = torch.zeros(2, 0, dtype=torch.int64, device=device)
        self._exchange: Exchange | None = None
        self._plan: object = ()

    def set_part(self, p: Parameters, part: PartAtoms) -> bool:
        """Upload the rows of other atoms; return True if a captured graph does not fit them."""
        exchange, device = part.exchange, self.names.device
        assert exchange is not None  # as parts without one have no borders
        rows = spread(len(self.names), part.n_own)
        rows[: len(part.numbers)] = part.rows
        self._rows.copy_(torch.from_numpy(rows))
        n_others, n_ghosts = exchange.n_rows - part.n_own, len(exchange.rows)
        size = self._ghosts.shape[1]
        if not n_ghosts <= size <= 2 * reserved(n_ghosts):
            size = reserved(n_ghosts)
        near = exchange.n_near - part.n_own, exchange.n_given_near
        plan = exchange.plan, n_others, len(exchange.given), *near, size
        has_changed, self._plan, self._exchange = plan != self._plan, plan, exchange
        if has_changed:
            self.n_others = n_others
            self._n_near, self._n_given_near = near
            self._ghosts = torch.zeros(2, size, dtype=torch.int64, device=device)
            self._given = torch.empty(len(exchange.given), dtype=torch.int32, device=device)
            self._given_rows = torch.zeros_like(self._given)
            self._species = torch.empty(self.n_others, dtype=torch.int32, device=device)
        self._given.copy_(torch.from_numpy(exchange.given))
        self._species.copy_(p.species(to_tensor(part.other_numbers, device)))
        self._ghosts.copy_(torch.from_numpy(self._ghosts_of(part, size)))
        return has_changed

    def _ghosts_of(self, part: PartAtoms, size: int) -> NDArray[np.int64]:
        """Return ghosts and the rows that sum their forces: own atoms, or rows after all atoms.

        Padding repeats the last atom, which has no force.
        """
        assert part.exchange is not None
        n_rows, rows = len(self.names), part.exchange.rows
        found = np.stack([np.full(size, n_rows - 1), spread(size, part.n_own)])
        found[0, : len(rows)] = np.arange(part.n_own, len(part.numbers))
        found[1, : len(rows)] = np.where(rows < part.n_own, rows, rows - part.n_own + n_rows)
        return found

    @property
    def is_queued(self) -> bool:
        """True if a CUDA graph may contain the exchange."""
        assert self._exchange is not None
        return self._exchange.is_queued

    def name(self, matrix: NeighborMatrix, n_own: Tensor, n_first: int) -> None:
        """Find the row of each atom after the matrix was sorted; see `name_rows`."""
        self._n_first = n_first
        name_rows(matrix, self._rows, n_own, n_first, self.names)

    def sort(self, rank: Tensor, species: Tensor, n_first: int) -> None:
        """Find what depends on the order of atoms: the rows to send, and the species of rows."""
        torch.index_select(rank, 0, self._given, out=self._given_rows)
        species[n_first : n_first + self.n_others] = self._species

    def fill(self, rows: Tensor) -> None:
        """Fetch the last rows of tensors; see `mlff_triton.engine.step.Borders`."""
        assert self._exchange is not None
        given = self._given_rows[: self._n_given_near]
        fetch_rows(self._exchange, rows, given, self.n_others, self._n_near)

    def fill_all(self, rows: Tensor) -> None:
        """Fetch all of the last rows; see `GatheringBorders` of a charged step."""
        assert self._exchange is not None
        fetch_rows(self._exchange, rows, self._given_rows, self.n_others, self.n_others)

    def rows_of(self, atoms: Tensor) -> Tensor:
        """Sum values of own atoms and ghosts; see `GatheringBorders` of a charged step."""
        rows = atoms.new_zeros(self._n_first + self.n_others, atoms.shape[1])
        rows[: self._n_first] = atoms[: self._n_first]
        ghosts = self.names[self._n_first :].long()
        return rows.index_put_((ghosts,), atoms[self._n_first :], accumulate=True)

    def reduce(self, rows: Tensor) -> Tensor:
        """Sum the values of all networks for own atoms: [K, n + M, F] -> [K, n, F].

        Sums have a fixed order.
        """
        assert self._exchange is not None
        n_own = rows.shape[1] - self.n_others
        per_atom = rows.transpose(0, 1).contiguous()
        own, given = per_atom[:n_own], self._given_rows[: self._n_given_near].long()
        received = own.new_empty(len(given), *own.shape[1:])
        self._exchange.trade(per_atom[n_own : n_own + self._n_near], received, back=True)
        return own.index_put_((given,), received, accumulate=True).transpose(0, 1)

    def total(self, values: Tensor) -> Tensor:
        """Sum values of one shape over all parts with atoms."""
        assert self._exchange is not None
        return reduce(torch.add, self._exchange.gather(values))

    def sum_forces(self, forces: Tensor) -> Tensor:
        """Sum the forces of all parts on own atoms, which come first in [N, 3].

        Sums have a fixed order. Other rows of the result have no meaning.
        """
        assert self._exchange is not None
        n_rows = len(forces)
        sums = torch.cat([forces, forces.new_zeros(self.n_others, 3)])
        ghosts, rows = self._ghosts
        sums.index_put_((rows,), forces[ghosts], accumulate=True)
        received = forces.new_empty(len(self._given), 3)
        self._exchange.trade(sums[n_rows:], received, back=True)
        return sums.index_put_((self._given.long(),), received, accumulate=True)[:n_rows]

    @property
    def alone(self) -> AloneBorders:
        """Borders without any other process, for rehearsals."""
        return AloneBorders(self.n_others, self._n_first)


@dataclass(frozen=True)
class AloneBorders:
    """Rows of other processes that stay as they are."""

    n_others: int
    n_first: int

    def fill(self, rows: Tensor) -> None:
        """Do nothing."""

    def fill_all(self, rows: Tensor) -> None:
        """Do nothing."""

    def rows_of(self, atoms: Tensor) -> Tensor:
        """Return zeros."""
        return atoms.new_zeros(self.n_first + self.n_others, atoms.shape[1])

    def reduce(self, rows: Tensor) -> Tensor:
        """Return the rows of own atoms."""
        return rows[:, : self.n_first].contiguous()

    def total(self, values: Tensor) -> Tensor:
        """Return the values of this part."""
        return values

    def sum_forces(self, forces: Tensor) -> Tensor:
        """Return the forces."""
        return forces
