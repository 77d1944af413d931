"""Exchanges between the parts of a system that threads of one process compute."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray
from torch import Tensor

from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import PartPrediction
from tests.support.parts import Part


class Board:
    """A place for parts to post tensors of their own atoms, and to wait for those of others."""

    def __init__(self, n_parts: int) -> None:
        self._barrier = Barrier(n_parts, timeout=60)
        self._posted: list[Tensor] = [torch.empty(0)] * n_parts

    def post(self, part: int, own: Tensor) -> list[Tensor]:
        """Post tensors of a part, and return those of all parts."""
        self._posted[part] = own
        self._barrier.wait()
        posted = list(self._posted)
        self._barrier.wait()  # before others are posted
        return posted


class BoardExchange:
    """Exchange of one part; see `mlff_triton.engine.part.Exchange`."""

    def __init__(self, board: Board, me: int, parts: Sequence[Part]) -> None:
        self._board, self.index = board, me
        part, n_own = parts[me], parts[me].n_own
        rows = {atom: k for k, atom in enumerate(part.index[:n_own])}
        ghosts, others = part.index[n_own:], _others(part)
        rows |= {atom: n_own + k for k, atom in enumerate(others)}
        self.rows: NDArray[np.int32] = np.array([rows[atom] for atom in ghosts], dtype=np.int32)
        self.n_rows, self._n_own = n_own + len(others), n_own
        owner = {
            atom: (k, row)
            for k, each in enumerate(parts)
            for row, atom in enumerate(each.index[: each.n_own])
        }
        self._others = [owner[atom] for atom in others]
        self._given = [
            (k, each.n_own + row, owner[atom][1])
            for k, each in enumerate(parts)
            for row, atom in enumerate(_others(each))
            if owner[atom][0] == me
        ]

    def extend(self, own: Tensor) -> Tensor:
        """Append the tensors of other parts."""
        posted = self._board.post(self.index, own)
        found = [posted[k][:, row, None] for k, row in self._others]
        return torch.cat([own, *found], 1)

    def reduce(self, rows: Tensor) -> Tensor:
        """Add what other parts found for own atoms."""
        posted = self._board.post(self.index, rows)
        own = rows[:, : self._n_own].clone()
        for part, row, atom in self._given:
            own[:, atom] += posted[part][:, row]
        return own

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all parts with atoms."""
        return self._board.post(self.index, own)


def _others(part: Part) -> list[int]:
    """Return the atoms of other parts that a part has ghosts of, in order of their rows."""
    own = set(part.index[: part.n_own].tolist())
    return [atom for atom in dict.fromkeys(part.index[part.n_own :].tolist()) if atom not in own]


class ExchangingParts:
    """Steps of all parts at once, each in a thread with an engine of its own."""

    def __init__(
        self, engines: Sequence[Engine], atoms: Atoms, parts: Sequence[Part], charge: int = 0
    ) -> None:
        filled = [k for k, part in enumerate(parts) if part.n_own]
        board = Board(len(filled))
        self.exchanges: list[BoardExchange | None] = [None] * len(parts)
        kept = [parts[k] for k in filled]
        for place, k in enumerate(filled):
            self.exchanges[k] = BoardExchange(board, place, kept)
        self._parts = parts
        self._systems = [engine.part(charge) for engine in engines]
        for system, part, exchange in zip(self._systems, parts, self.exchanges, strict=True):
            system.set_atoms(atoms.numbers[part.index], part.n_own, len(atoms), exchange)

    def step(self, atoms: Atoms) -> list[PartPrediction]:
        """Compute all parts at the present positions of all atoms."""

        def compute(k: int) -> PartPrediction:
            positions = self._parts[k].positions(atoms)
            return self._systems[k].step(positions, per_atom=True)

        with ThreadPoolExecutor(len(self._parts)) as pool:
            return list(pool.map(compute, range(len(self._parts))))
