"""Part of a large system: its own atoms, whose energies count, and ghosts around them.

A program that divides a system among processes gives each of them some atoms, and copies of all
atoms nearby, its ghosts. These may be atoms of other processes or periodic images, so that a part
has no cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mlff_triton._common.text import short_repr
from mlff_triton.engine.batch import IntArray, as_array
from mlff_triton.errors import InputError
from mlff_triton.model.config import TensorNetConfig
from mlff_triton.neighbors.box import FloatArray


def reach(config: TensorNetConfig) -> float:
    """Return the distance in Å up to which atoms influence the energy of an atom.

    Each layer passes messages over one cutoff, and so does the embedding.
    """
    return (config.num_layers + 1) * config.cutoff


class Exchange(Protocol):
    """Exchange of tensors of atoms at the borders of parts, while their steps are computed.

    With it, ghosts are needed within one cutoff only, and no atom is computed by two parts.

    Attributes
    ----------
    rows : int32 [ghosts]
        Row of the atom that each ghost is a copy of: an own atom, or one that `extend` appends.
    n_rows : int
        Number of rows.
    """

    @property
    def rows(self) -> NDArray[np.int32]:
        """Same as the attribute."""

    @property
    def n_rows(self) -> int:
        """Same as the attribute."""

    def extend(self, own: Tensor) -> Tensor:
        """Append the tensors of other parts to those of own atoms.

        All parts call this equally often, each with its own tensors, and wait for those that they
        need. Parts without own atoms do not call, as they have nothing to give and need nothing.

        Parameters
        ----------
        own : [K, n_own, F]
            Tensors of own atoms.

        Returns
        -------
        [K, n_rows, F]
        """

    def reduce(self, rows: Tensor) -> Tensor:
        """Add what all parts found for each atom: the adjoint of `extend`, called like it.

        Sums have a fixed order, so they are reproducible.

        Parameters
        ----------
        rows : [K, n_rows, F]
            Gradients of own atoms and of those of other parts; may be overwritten.

        Returns
        -------
        [K, n_own, F]
            Gradients of own atoms.
        """

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return the tensors of all parts that have atoms, in the same order on all of them.

        These parts call it equally often, and wait for one another. Only models with charges need
        it.

        Parameters
        ----------
        own : [n, ...]
            Any tensor; others may have another n.
        """

    @property
    def index(self) -> int:
        """Position of this part among those whose tensors `gather` returns."""


def total(exchange: Exchange, values: Tensor) -> Tensor:
    """Sum the values of all parts that have atoms; all of them get the same bits."""
    return reduce(torch.add, exchange.gather(values))


@dataclass(frozen=True)
class OwnImages:
    """Exchange of a part whose ghosts are all images of its own atoms."""

    rows: NDArray[np.int32]
    n_rows: int

    index = 0

    def extend(self, own: Tensor) -> Tensor:
        """Return the same tensors; see `Exchange.extend`."""
        return own

    def reduce(self, rows: Tensor) -> Tensor:
        """Return the same gradients; see `Exchange.reduce`."""
        return rows

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
        With it, ghosts are those within one cutoff.
    """

    numbers: IntArray
    n_own: int
    n_total: int
    exchange: Exchange | None = None

    @classmethod
    def of(
        cls, numbers: ArrayLike, n_own: int, n_total: int, exchange: Exchange | None = None
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
        return cls(z.astype(np.int64), int(n_own), int(n_total), exchange)

    @property
    def rows(self) -> NDArray[np.int32]:
        """Row of each atom among those that differ, int32 [N]; without an exchange, all do."""
        if self.exchange is None:
            return np.arange(len(self.numbers), dtype=np.int32)
        return np.concatenate([np.arange(self.n_own, dtype=np.int32), self.exchange.rows])

    @property
    def row_numbers(self) -> IntArray:
        """Atomic number of each row, int64 [rows]."""
        rows = self.rows
        numbers = np.zeros(rows.max(initial=-1) + 1, dtype=np.int64)
        numbers[rows] = self.numbers
        return numbers


def _check_rows(exchange: Exchange, n_own: int, n_atoms: int) -> None:
    """Check that ghosts have rows, and all rows of other parts have a ghost."""
    rows, n_rows = exchange.rows, exchange.n_rows
    others = np.unique(rows[rows >= n_own])
    is_complete = np.array_equal(others, np.arange(n_own, n_rows))
    if len(rows) != n_atoms - n_own or rows.min(initial=0) < 0 or not is_complete:
        raise InputError(
            f"an exchange for {n_own} own atoms and {n_atoms - n_own} ghosts needs a row for each "
            f"ghost and a ghost for each of its {n_rows} rows that is not an own atom's"
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
    forces : float64 [N, 3]
        Negative derivatives of ``energy`` with respect to the positions of all atoms, own and
        ghosts. The force on an atom is the sum over all parts in which it occurs.
    virial : float64 [3, 3]
        Derivative of ``energy`` with respect to a strain of the part, with its ghosts. Summed over
        all parts, it is the virial of the whole system, as in
        `mlff_triton.model.prediction.Prediction`.
    atom_energies : float64 [n_own]
        Energy of each own atom.
    atom_virials : float64 [N, 3, 3] or None
        Share of each atom, own or ghost, in ``virial``, if requested. Each edge contributes to the
        energy's virial half for either end. As with forces, the share of an atom is the sum over
        all parts in which it occurs.
    """

    energy: float
    forces: FloatArray
    virial: FloatArray
    atom_energies: FloatArray
    atom_virials: FloatArray | None

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


class PartStep(Protocol):
    """Steps of one model for one part, in Å and eV."""

    def set_atoms(self, atoms: PartAtoms) -> None:
        """Replace all atoms.

        Raises
        ------
        UnknownElementError
            If the model was not made for an element.
        """

    def step(self, positions: FloatArray, *, per_atom: bool) -> PartPrediction:
        """Compute the current atoms, of which at least one is own.

        Parameters
        ----------
        positions : float64 [N, 3]
            Å.
        per_atom : bool
            True if the shares of atoms in the virial are needed.
        """
