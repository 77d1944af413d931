"""Atoms that the constraints of a structure keep from moving."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from mlff_triton.errors import InputError


def fixed_atoms(atoms: Atoms) -> NDArray[np.bool_]:
    """Return True for each atom that a structure fixes.

    ``FixAtoms`` of ASE fixes atoms. ``FixCartesian`` and ``FixScaled``, which come from some files,
    do so too if they act in all three directions.

    Parameters
    ----------
    atoms : Atoms
        The structure.

    Returns
    -------
    bool [N]

    Raises
    ------
    InputError
        If the structure has a constraint that is not supported, one that names an atom that does
        not exist, or only fixed atoms.
    """
    fixed = np.zeros(len(atoms), dtype=bool)
    for constraint in atoms.constraints:
        name = type(constraint).__name__
        if not _is_supported(constraint):
            raise InputError(
                f"the constraint {name} is not supported: remove it, or fix atoms in all directions"
            )
        try:
            fixed[constraint.index] |= np.all(getattr(constraint, "mask", True))
        except IndexError as error:
            raise InputError(
                f"the constraint {name} names atoms that the {len(atoms)} atoms lack: replace it"
            ) from error
    if len(atoms) and fixed.all():
        raise InputError("all atoms are fixed, so that nothing would move: free at least one")
    return fixed


def _is_supported(constraint: object) -> bool:
    """Return True if a constraint fixes atoms in all directions, or in none."""
    from ase.constraints import FixAtoms, FixCartesian, FixScaled  # 0.4 s, for whoever has some

    if isinstance(constraint, (FixCartesian, FixScaled)):
        return len(set(np.ravel(constraint.mask).tolist())) == 1
    return isinstance(constraint, FixAtoms)


def moving_masses(systems: Sequence[Atoms]) -> NDArray[np.float64]:
    """Return the mass of each atom of all systems in amu; it is infinite for fixed atoms.

    Raises
    ------
    InputError
        As for `fixed_atoms`.
    """
    masses = [np.where(fixed_atoms(atoms), np.inf, atoms.get_masses()) for atoms in systems]
    return np.concatenate(masses)
