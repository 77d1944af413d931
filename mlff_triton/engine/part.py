"""Part of a large system: its own atoms, whose energies count, and ghosts around them.

A program that divides a system among processes gives each of them some atoms and, as ghosts, copies
of all atoms nearby. Ghosts may be atoms of other processes or periodic images, so a part has no
cell. Only the mesh of particle-mesh Ewald belongs to the cell of the whole system.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mlff_triton._common.text import short_repr
from mlff_triton.engine.batch import IntArray, as_array
from mlff_triton.errors import InputError
from mlff_triton.model.config import TensorNetConfig
from mlff_triton.neighbors.box import Box, FloatArray

ALIGNMENT = 16  # numbers of rows that share compiled kernels
Count = TypeVar("Count", int, NDArray[np.int32])


def reach(config: TensorNetConfig) -> float:
    """Return the distance in Å up to which atoms influence the energy of an atom.

    Each layer passes messages over one cutoff, and so does the embedding.
    """
    return (config.num_layers + 1) * config.cutoff


class Exchange(Protocol):
    """Exchange of tensors of atoms at the borders of parts during their steps.

    With it, ghosts are needed within one cutoff only, and no atom is computed by two parts. All
    parts with own atoms call its methods equally often, and wait for messages of the others. Parts
    without own atoms do not call.

    Attributes
    ----------
    rows : int32 [ghosts]
        Row of the atom that each ghost copies: an own atom, or an atom of another part in the rows
        that follow.
    n_rows : int
        Number of rows. Some may have no ghost, so that this number can last.
    n_near : int
        Number of leading rows that the network needs: rows of own atoms, and of other atoms that
        stay within its cutoff until the next exchange.
    given : int32 [S]
        Own atoms that are ghosts of other parts, in the order in which they are sent.
    n_given_near : int
        Number of leading atoms among these that the networks of other parts need.
    plan : object
        All exchanges of equal plans send and receive messages of the same sizes in `trade`.
    is_queued : bool
        True if `trade` queues its work on the current stream, so that a CUDA graph may contain it.
    index : int
        Position of this part among those whose tensors `gather` returns.
    """

    @property
    def rows(self) -> NDArray[np.int32]:
        """Same as the attribute."""

    @property
    def n_rows(self) -> int:
        """Same as the attribute."""

    @property
    def n_near(self) -> int:
        """Same as the attribute."""

    @property
    def given(self) -> NDArray[np.int32]:
        """Same as the attribute."""

    @property
    def n_given_near(self) -> int:
        """Same as the attribute."""

    @property
    def plan(self) -> object:
        """Same as the attribute."""

    @property
    def is_queued(self) -> bool:
        """Same as the attribute."""

    @property
    def index(self) -> int:
        """Same as the attribute."""

    def trade(self, sent: Tensor, received: Tensor, *, back: bool = False) -> None:
        """Send a row of values per atom, and overwrite the rows of other atoms with received ones.

        Parameters
        ----------
        sent : [S, ...]
            Values of the own atoms that are given, or of the first `n_given_near` only.
        received : [M, ...]
            Output: values of the M rows of other parts, or of those before `n_near` only.
        back : bool
            If True, values go the opposite way: ``sent`` has M rows and ``received`` S.
        """

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all parts that have atoms, in the same order on all of them.

        Only models with charges need it. If work is queued, all tensors must have one shape.

        Parameters
        ----------
        own : [n, ...]
            Any tensor; others may have another n.
        """


def reserved(count: Count, share: int = 32) -> Count:
    """Return the rows for atoms whose number fluctuates, with one more per ``share`` atoms."""
    return -(-(count + count // share) // ALIGNMENT) * ALIGNMENT


def spread(size: int, n_own: int) -> NDArray[np.int32]:
    """Return own atoms in a cycle, for padding whose values are zero.

    A sum takes as long as its longest row, so padding is spread over all atoms.
    """
    return np.arange(size, dtype=np.int32) % max(n_own, 1)


def fetch_rows(
    exchange: Exchange, rows: Tensor, given: Tensor, n_others: int, n_wanted: int
) -> None:
    """Fetch the last rows of tensors [K, n, F] from other parts, and send the rows in ``given``.

    Of ``n_others`` rows, the first ``n_wanted`` are fetched. The rest becomes NaN, so that no
    result can depend on it unnoticed.
    """
    per_atom = rows.transpose(0, 1)
    received = rows.new_empty(n_wanted, len(rows), rows.shape[2])
    exchange.trade(per_atom.index_select(0, given), received)
    others = per_atom[len(per_atom) - n_others :]
    others[:n_wanted] = received
    others[n_wanted:] = torch.nan


@dataclass(frozen=True)
class PartBorders:
    """Rows of other parts on the host; see `mlff_triton.engine.step.Borders`."""

    exchange: Exchange
    n_own: int

    @property
    def n_others(self) -> int:
        """Number of rows of other parts."""
        return self.exchange.n_rows - self.n_own

    def fill(self, rows: Tensor) -> None:
        """Fetch the rows of other parts that the network needs, of tensors [K, n_rows, F]."""
        exchange = self.exchange
        given = torch.from_numpy(exchange.given[: exchange.n_given_near]).to(rows.device)
        fetch_rows(exchange, rows, given, self.n_others, exchange.n_near - self.n_own)

    def fill_all(self, rows: Tensor) -> None:
        """Fetch all rows of other parts, of tensors [K, n_rows, F]."""
        given = torch.from_numpy(self.exchange.given).to(rows.device)
        fetch_rows(self.exchange, rows, given, self.n_others, self.n_others)

    def reduce(self, rows: Tensor) -> Tensor:
        """Sum the values of all parts' networks for atoms: [K, n_rows, F] -> [K, n_own, F].

        Sums have a fixed order, so they are reproducible.
        """
        exchange = self.exchange
        own = rows[:, : self.n_own].contiguous()
        sent = rows[:, self.n_own : exchange.n_near].transpose(0, 1).contiguous()
        received = sent.new_empty(exchange.n_given_near, *sent.shape[1:])
        exchange.trade(sent, received, back=True)
        given = torch.from_numpy(exchange.given[: exchange.n_given_near]).to(own.device)
        return own.index_add_(1, given, received.transpose(0, 1))

    def total(self, values: Tensor) -> Tensor:
        """Sum the values of all parts that have atoms; all parts get the same bits."""
        return reduce(torch.add, self.exchange.gather(values))


@dataclass(frozen=True)
class OwnImages:
    """Exchange of a part whose ghosts are all images of its own atoms."""

    rows: NDArray[np.int32]
    n_rows: int

    given = np.zeros(0, dtype=np.int32)
    n_given_near = 0
    plan = None
    is_queued = True
    index = 0

    @property
    def n_near(self) -> int:
        """All rows; see `Exchange`."""
        return self.n_rows

    def trade(self, sent: Tensor, received: Tensor, *, back: bool = False) -> None:
        """Do nothing, because there are no other parts."""

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return the only tensor; see `Exchange.gather`."""
        return [own]


@dataclass(frozen=True)
class PartAtoms:
    """Atoms of a part, checked.

    Attributes
    ----------
    numbers : int64 [N]
        Atomic numbers, those of own atoms first.
    n_own : int
        Number of own atoms.
    n_total : int
        Number of atoms in the whole system.
    exchange : Exchange, optional
        With an exchange, ghosts are the atoms within one cutoff.
    limits : float64 [N], optional
        Length of each atom in Å: two atoms are in contact below the sum of their lengths.
    """

    numbers: IntArray
    n_own: int
    n_total: int
    exchange: Exchange | None = None
    limits: FloatArray | None = None

    @classmethod
    def of(
        cls,
        numbers: ArrayLike,
        n_own: int,
        n_total: int,
        exchange: Exchange | None = None,
        limits: FloatArray | None = None,
    ) -> PartAtoms:
        """Check and convert atoms; see `mlff_triton.engine.system_part.SystemPart.set_atoms`."""
        z = as_array(numbers)
        if z.ndim != 1 or (len(z) and z.dtype.kind not in "iu"):
            raise InputError(
                f"atomic numbers must be a list of integers, not {z.dtype} {list(z.shape)}"
            )
        for name, count in (("n_own", n_own), ("n_total", n_total)):
            if not isinstance(count, (int, np.integer)):
                raise InputError(f"{name} must be an integer, not {short_repr(count)}")
        if not 0 <= n_own <= min(len(z), n_total):
            raise InputError(
                f"n_own must lie between 0 and the numbers of atoms of the part, {len(z)}, and of "
                f"the whole system, {n_total}, not {n_own}"
            )
        if exchange is not None:
            _check_rows(exchange, int(n_own), len(z))
        return cls(z.astype(np.int64), int(n_own), int(n_total), exchange, limits)

    @property
    def rows(self) -> NDArray[np.int32]:
        """Row of each atom, int32 [N]; without an exchange, each atom has its own row."""
        if self.exchange is None:
            return np.arange(len(self.numbers), dtype=np.int32)
        return np.concatenate([np.arange(self.n_own, dtype=np.int32), self.exchange.rows])

    @property
    def row_numbers(self) -> IntArray:
        """Atomic number of each row, int64 [rows]."""
        if self.exchange is None:
            return self.numbers
        return np.concatenate([self.numbers[: self.n_own], self.other_numbers])

    @property
    def other_numbers(self) -> IntArray:
        """Atomic numbers of the rows of other parts, with an exchange; any for unused rows."""
        assert self.exchange is not None
        rows = self.exchange.rows
        is_other = rows >= self.n_own
        numbers = np.full(self.exchange.n_rows - self.n_own, self.numbers[0])
        numbers[rows[is_other] - self.n_own] = self.numbers[self.n_own :][is_other]
        return numbers


def _check_rows(exchange: Exchange, n_own: int, n_atoms: int) -> None:
    """Check that each ghost has a row, and that only own atoms are sent."""
    rows, n_rows, given = exchange.rows, exchange.n_rows, exchange.given
    is_valid = (
        len(rows) == n_atoms - n_own
        and n_own <= exchange.n_near <= n_rows
        and 0 <= exchange.n_given_near <= len(given)
        and 0 <= rows.min(initial=0) <= rows.max(initial=0) < max(n_rows, 1)
        and 0 <= given.min(initial=0) <= given.max(initial=0) < max(n_own, 1)
    )
    if not is_valid:
        raise InputError(
            f"an exchange for {n_own} own atoms and {n_atoms - n_own} ghosts needs one of its "
            f"{n_rows} rows for each ghost, the first ones for own atoms, and gives own atoms"
        )


@dataclass(frozen=True)
class PartPrediction:
    """Energies of the own atoms of a part, and their derivatives.

    Arrays may be overwritten by the next step. They are in the units of the program that the part
    serves.

    Attributes
    ----------
    energy : float
        Sum of the energies of own atoms.
    forces : float64 [N, 3] or [n_own, 3]
        Negative derivatives of ``energy`` with respect to the positions of all atoms, own and
        ghosts. The force on an atom is the sum over all parts in which it occurs. Forces [n_own, 3]
        on own atoms alone are these sums; a queued exchange returns them, except in steps with
        ``atom_virials``.
    virial : float64 [3, 3]
        Derivative of ``energy`` with respect to a strain of the part, with its ghosts. Summed over
        all parts, it is the virial of the whole system, as in
        `mlff_triton.model.prediction.Prediction`.
    atom_energies : float64 [n_own]
        Energy of each own atom.
    atom_virials : float64 [N, 3, 3] or None
        Share of each atom, own or ghost, in ``virial``, if requested. Each end of an edge gets half
        of the edge's contribution. As with forces, the share of an atom is the sum over all parts
        in which it occurs.
    uncertainty : float64 [n_own] or None
        Expected error of the force on each own atom, if the model knows its uncertainty.
    has_contacts : bool
        True if atoms are in contact, own ones or ghosts: see `PartAtoms`. Only steps on a GPU look
        for contacts, up to `Engine.contact_reach` and rounding.
    """

    energy: float
    forces: FloatArray
    virial: FloatArray
    atom_energies: FloatArray
    atom_virials: FloatArray | None
    uncertainty: FloatArray | None = None
    has_contacts: bool = False

    @classmethod
    def zeros(cls, atoms: PartAtoms, *, per_atom: bool) -> PartPrediction:
        """Return the prediction of a part without own atoms."""
        n_atoms = len(atoms.numbers)
        virials = np.zeros((n_atoms, 3, 3)) if per_atom else None
        return cls(0.0, np.zeros((n_atoms, 3)), np.zeros((3, 3)), np.zeros(atoms.n_own), virials)


def virials_of(components: Tensor) -> FloatArray:
    """Return symmetric matrices [N, 3, 3] of components xx, yy, zz, yz, xz and xy, [6, N]."""
    matrices: FloatArray = components[[0, 5, 4, 5, 1, 3, 4, 3, 2]].T.reshape(-1, 3, 3).numpy()
    return matrices


def own_errors(uncertainty: Tensor, atoms: PartAtoms) -> FloatArray:
    """Return the uncertainties of own atoms, float64 [n_own], given those of all."""
    own: FloatArray = uncertainty[: atoms.n_own].double().cpu().numpy()
    return own


class PartStep(Protocol):
    """Steps of one model for one part, in Å and eV."""

    def set_atoms(self, atoms: PartAtoms) -> None:
        """Replace all atoms.

        Raises
        ------
        UnknownElementError
            If the model was not made for an element.
        """

    def step(
        self, positions: FloatArray, *, per_atom: bool, box: Box | None = None
    ) -> PartPrediction:
        """Compute the current atoms, at least one of them own.

        Parameters
        ----------
        positions : float64 [N, 3]
            Å.
        per_atom : bool
            True if the shares of atoms in the virial are needed.
        box : Box, optional
            Cell of the whole system; only models with particle-mesh Ewald need it.
        """
