"""Exchanges between the parts of a system that threads of one process compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Lock

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from mlff_triton.engine.engine import Engine
from mlff_triton.engine.part import PartPrediction
from tests.support.parts import Part


class Board:
    """A place for parts to post tensors of their own atoms, and to wait for those of others."""

    def __init__(self, n_parts: int) -> None:
        self._takes_turns = False
        self._barrier = Barrier(n_parts, timeout=60)
        self._posted: list[Tensor] = [torch.empty(0)] * n_parts
        self._lock = Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let one part compute at a time, as Triton's interpreter requires, until it posts."""
        self._takes_turns = True
        with self._lock:
            yield

    def post(self, part: int, own: Tensor) -> list[Tensor]:
        """Post tensors of a part, and return those of all parts."""
        self._posted[part] = own
        if self._takes_turns:
            self._lock.release()
        self._barrier.wait()
        posted = list(self._posted)
        self._barrier.wait()  # before others are posted
        if self._takes_turns:
            self._lock.acquire()
        return posted


class BoardExchange:
    """Exchange of one part; see `mlff_triton.engine.part.Exchange`.

    ``unused`` rows without ghosts follow all others. If sets of atoms are given, networks of parts
    need the tensors of these only.
    """

    plan = None
    is_queued = False

    def __init__(
        self,
        board: Board,
        me: int,
        parts: Sequence[Part],
        unused: int = 0,
        near: Sequence[set[int]] | None = None,
    ) -> None:
        self._board, self.index = board, me
        part, n_own = parts[me], parts[me].n_own
        rows = {atom: k for k, atom in enumerate(part.index[:n_own])}
        every = [_others(each, near and near[k]) for k, each in enumerate(parts)]
        ghosts, others = part.index[n_own:], every[me]
        rows |= {atom: n_own + k for k, atom in enumerate(others)}
        self.rows: NDArray[np.int32] = np.array([rows[atom] for atom in ghosts], dtype=np.int32)
        self.n_rows = n_own + len(others) + unused
        self.n_near, n_near = self.n_rows, [len(each) for each in every]
        if near is not None:
            n_near = [len(found & set(each)) for found, each in zip(near, every, strict=True)]
            self.n_near = n_own + n_near[me]
        given = [_given(parts, k, every, n_near) for k in range(len(parts))]
        self.n_given_near = sum(row < n_near[taker] for taker, row, _ in given[me])
        self.given = np.array([atom for *_, atom in given[me]], dtype=np.int32)
        self._takers = [(taker, row) for taker, row, _ in given[me]]
        self._givers = [
            next(
                (k, s)
                for k, all_given in enumerate(given)
                for s, g in enumerate(all_given)
                if g[:2] == (me, row)
            )
            for row in range(len(others))
        ]

    def trade(self, sent: Tensor, received: Tensor, *, back: bool = False) -> None:
        """Send a row per atom to other parts, or back."""
        posted = self._board.post(self.index, sent)
        sources = self._takers if back else self._givers
        for k, (part, row) in enumerate(sources[: len(received)]):
            received[k] = posted[part][row]

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all parts with atoms."""
        return self._board.post(self.index, own)


class Echo:
    """Exchange of a part with itself: the first images of own atoms count as atoms of others."""

    is_queued = True
    index = 0

    def __init__(self, part: Part, n_echoes: int, unused: int = 0) -> None:
        own = {atom: k for k, atom in enumerate(part.index[: part.n_own])}
        rows = np.array([own[atom] for atom in part.index[part.n_own :]], dtype=np.int32)
        self.given = np.unique(rows[:n_echoes]).astype(np.int32)
        place = np.searchsorted(self.given, rows[:n_echoes])
        rows[:n_echoes] = part.n_own + place
        self.rows, self.n_rows = rows, part.n_own + len(self.given) + unused
        self.n_near, self.n_given_near = self.n_rows, len(self.given)
        self.plan = len(self.given)

    def trade(self, sent: Tensor, received: Tensor, *, back: bool = False) -> None:  # noqa: ARG002
        """Copy rows, which go either way."""
        count = len(self.given)
        received[:count] = sent[:count]

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return the only tensor."""
        return [own]


def _given(
    parts: Sequence[Part], me: int, others: Sequence[list[int]], n_near: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Return the part, its row among those of others, and the own atom, for all that is given.

    Atoms that networks need come first.
    """
    own = {atom: k for k, atom in enumerate(parts[me].index[: parts[me].n_own])}
    given = [
        (k, row, own[atom])
        for k, found in enumerate(others)
        for row, atom in enumerate(found)
        if atom in own
    ]
    return sorted(given, key=lambda each: each[1] >= n_near[each[0]])


def _others(part: Part, near: set[int] | None = None) -> list[int]:
    """Return the atoms of other parts that a part has ghosts of, in order of their rows."""
    own = set(part.index[: part.n_own].tolist())
    others = [atom for atom in dict.fromkeys(part.index[part.n_own :].tolist()) if atom not in own]
    return others if near is None else sorted(others, key=lambda atom: atom not in near)


def atoms_near(atoms: Atoms, part: Part, distance: float) -> set[int]:
    """Return the atoms with ghosts within a distance in Å of own atoms of a part."""
    positions = part.positions(atoms)
    found = cKDTree(positions[: part.n_own]).query(positions[part.n_own :])[0]
    return set(part.index[part.n_own :][found < distance].tolist())


class ExchangingParts:
    """Steps of all parts at once, each in a thread with an engine of its own."""

    def __init__(
        self,
        engines: Sequence[Engine],
        atoms: Atoms,
        parts: Sequence[Part],
        charge: int = 0,
        unused: int = 0,
        near: float | None = None,
    ) -> None:
        filled = [k for k, part in enumerate(parts) if part.n_own]
        board = Board(len(filled))
        self.exchanges: list[BoardExchange | None] = [None] * len(parts)
        kept = [parts[k] for k in filled]
        within = None if near is None else [atoms_near(atoms, part, near) for part in kept]
        for place, k in enumerate(filled):
            self.exchanges[k] = BoardExchange(board, place, kept, unused, within)
        self._parts = parts
        self._systems = [engine.part(charge) for engine in engines]
        for system, part, exchange in zip(self._systems, parts, self.exchanges, strict=True):
            system.set_atoms(atoms.numbers[part.index], part.n_own, len(atoms), exchange)

    def step(self, atoms: Atoms) -> list[PartPrediction]:
        """Compute all parts at the present positions of all atoms."""

        def compute(k: int) -> PartPrediction:
            positions = self._parts[k].positions(atoms)
            return self._systems[k].step(positions, True, atoms.cell.array, atoms.pbc)

        with ThreadPoolExecutor(len(self._parts)) as pool:
            return list(pool.map(compute, range(len(self._parts))))
