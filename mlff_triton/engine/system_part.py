"""Part of a large system, returned by `Engine.part`, in the units of a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike

from mlff_triton.engine.part import Exchange, PartAtoms, PartPrediction, PartStep
from mlff_triton.engine.steps import Units
from mlff_triton.errors import BackendError, InputError
from mlff_triton.neighbors.box import Box, FloatArray, as_floats


class SystemPart:
    """Part of a system that a program divides among processes; see `Engine.part`.

    A process owns some atoms and sees copies of all atoms nearby, its ghosts. Ghosts may be atoms
    of other processes or periodic images, so a part has no cell. Energies are those of own atoms.
    Their derivatives also act on ghosts, and the program adds these to the forces on the original
    atoms.

    Parameters
    ----------
    reach, exchange_reach, tensor_reach : float
        Å; see the attributes.
    members : list of PartStep
        Steps of each model.
    call : callable
        Returns the context of a call of the engine.
    units : Units
        Units of arguments and results.

    Attributes
    ----------
    reach : float
        Distance up to which all atoms around own atoms must be given as ghosts, in the program's
        unit of length: ``(layers + 1) * cutoff``, or infinity for a model with charges, which needs
        an exchange. More ghosts do no harm.
    tensor_reach : float
        Distance up to which parts with an exchange need tensors of ghosts: the cutoff of the
        network, or infinity for the backend "exact".
    exchange_reach : float or None
        The same as `reach` with an exchange: one cutoff, or that of the Coulomb energy if it is
        longer. None if the backend has no steps with an exchange, as "exact" has not, nor kernels
        for charges.

    Examples
    --------
    A part of a water molecule, in which the second hydrogen atom is a ghost:

    >>> from mlff_triton import Engine
    >>> part = Engine("default", device="cpu").part()
    >>> part.set_atoms([8, 1, 1], n_own=2, n_total=3)
    >>> prediction = part.step([[0, 0, 0.1], [0, 0.8, -0.5], [0, -0.8, -0.5]])
    >>> prediction.forces.shape, prediction.atom_energies.shape
    ((3, 3), (2,))
    """

    def __init__(
        self,
        reach: float,
        exchange_reach: float | None,
        tensor_reach: float,
        members: list[PartStep],
        call: Callable[[], AbstractContextManager[None]],
        units: Units,
    ) -> None:
        self.reach = reach / units.length
        self.exchange_reach = None if exchange_reach is None else exchange_reach / units.length
        self.tensor_reach = tensor_reach / units.length
        self._members = members
        self._call = call
        self._units = units
        self._atoms = PartAtoms.of([], 0, 0)

    def set_atoms(
        self,
        numbers: ArrayLike,
        n_own: int,
        n_total: int,
        exchange: Exchange | None = None,
        limits: FloatArray | None = None,
    ) -> None:
        """Replace the atoms; their order is kept until the next call.

        Parameters
        ----------
        numbers : int [N]
            Atomic numbers of own atoms, and then of ghosts. There may be none.
        n_own : int
            Number of own atoms.
        n_total : int
            Number of own atoms in all parts. Some models add a constant to the energy of a system,
            of which each atom gets an equal share.
        exchange : Exchange, optional
            Source of the tensors of atoms that other processes own. All processes then compute
            their steps at the same time, and wait for one another.
        limits : float64 [N], optional
            Length of each atom in Å: two atoms are in contact below the sum of theirs, which steps
            on a GPU tell: see `PartPrediction.has_contacts`.

        Raises
        ------
        InputError
            If an argument is invalid.
        UnknownElementError
            If the model was not made for an element.
        BackendError
            If the backend has no steps with an exchange, a model with charges has none, or the GPU
            has too little memory. The message says how much is needed.
        """
        if exchange is not None and self.exchange_reach is None:
            raise BackendError(
                'parts of the backend "exact" compute their ghosts: an exchange needs another one'
            )
        if exchange is None and n_own and math.isinf(self.reach):
            raise BackendError(
                "charges of this model are not local: each depends on all atoms, so give set_atoms "
                "an exchange with the other parts"
            )
        atoms = PartAtoms.of(numbers, n_own, n_total, exchange, limits)
        with self._call():
            self._atoms = PartAtoms.of([], 0, 0)  # in case of an error
            if atoms.n_own:
                for member in self._members:
                    member.set_atoms(atoms)
            self._atoms = atoms

    def step(
        self,
        positions: ArrayLike,
        per_atom: bool = False,
        cell: ArrayLike | None = None,
        pbc: ArrayLike = False,
    ) -> PartPrediction:
        """Compute energies of own atoms, and forces on all atoms.

        Any thread may call.

        Parameters
        ----------
        positions : float [N, 3]
            Positions of own atoms and ghosts.
        per_atom : bool
            If True, compute the share of each atom in the virial.
        cell : float [3, 3], optional
            Lattice vectors (rows) of the whole system in the part's unit of length. Only models
            with particle-mesh Ewald need it, the same for all parts.
        pbc : bool or bool [3]
            Periodic directions of that cell.

        Returns
        -------
        PartPrediction
            In the part's units.

        Raises
        ------
        InputError
            If the shape is wrong, a value is not finite, or an atom has too many neighbors. Also if
            particle-mesh Ewald lacks a periodic cell, or its mesh would be too large.
        OverlappingAtomsError
            If two atoms coincide.
        BackendError
            If the GPU has too little memory. The message says how much is needed.
        """
        points = as_floats(positions, "positions")
        with self._call():
            atoms, n_atoms = self._atoms, len(self._atoms.numbers)
            if points.size or n_atoms:
                _check_shape(points, n_atoms)
            if not atoms.n_own:
                return PartPrediction.zeros(atoms, per_atom=per_atom)
            scaled, length = _scaled(points, self._units.length), self._units.length
            given = None if cell is None else _scaled(as_floats(cell, "the cell"), length)
            box = Box.of(given, pbc)
            results = [member.step(scaled, per_atom=per_atom, box=box) for member in self._members]
        return _mean(results, self._units)


def _check_shape(points: FloatArray, n_atoms: int) -> None:
    if points.shape != (n_atoms, 3):
        raise InputError(
            f"{n_atoms} atoms need positions [{n_atoms}, 3], not {list(points.shape)}: call "
            "set_atoms when atoms or ghosts change"
        )


def _mean(results: list[PartPrediction], units: Units) -> PartPrediction:
    """Convert the mean of all members from Å and eV to other units."""
    factor = 1 / (units.energy * len(results))

    def mean(values: list[FloatArray], factor: float = factor) -> FloatArray:
        return _scaled(reduce(np.add, values), factor)

    virials = [result.atom_virials for result in results if result.atom_virials is not None]
    errors = [result.uncertainty for result in results if result.uncertainty is not None]
    return PartPrediction(
        energy=sum(result.energy for result in results) * factor,
        forces=mean([result.forces for result in results], factor * units.length),
        virial=mean([result.virial for result in results]),
        atom_energies=mean([result.atom_energies for result in results]),
        atom_virials=mean(virials) if virials else None,
        uncertainty=mean(errors, factor * units.length) if len(errors) == len(results) else None,
        has_contacts=any(result.has_contacts for result in results),
    )


def _scaled(values: FloatArray, factor: float) -> FloatArray:
    """Multiply values by a factor, without a copy if the factor is 1."""
    return values if factor == 1 else values * factor
