"""Energies, forces and stresses of all frames of files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ase import Atoms

from mlff_triton.calculators import TensorNetCalculator
from mlff_triton.calculators._screening import labeled
from mlff_triton.calculators._total_charge import CHARGE, noted_charge, total_charge
from mlff_triton.dynamics.structures import SHIPPED, checked, read_images, read_structure
from mlff_triton.dynamics.trajectories.comment import to_json
from mlff_triton.errors import InputError, MlffTritonError
from mlff_triton.statics.result_text import with_results

IMAGES_PER_CALL = 512  # between two reports of progress


def read_frames(source: str | Path, *, periodic: bool = True) -> list[Atoms]:
    """Read all frames of a file that ASE supports, or a shipped structure.

    Only elements, positions, cell and ``info`` are kept. Values of ``info`` are converted to types
    that JSON has.

    Parameters
    ----------
    source : str or path
        Name of a shipped structure (``"alanine-dipeptide-water"``) or a file.
    periodic : bool, optional
        If False, drop the cells.

    Returns
    -------
    list of Atoms
        The frames in order. A PDB cell of 1 x 1 x 1 Å, which means "none" in that format, is
        dropped.

    Raises
    ------
    InputError
        If the file is missing, unreadable or empty, or has positions that are not finite.

    Examples
    --------
    >>> [len(atoms) for atoms in read_frames("alanine-dipeptide-water")]
    [166]
    """
    name = str(source)
    if name in SHIPPED:
        return [read_structure(name, periodic=periodic)]
    images = read_images(name)
    if not images:
        raise InputError(f"{name} contains no structures")
    frames = []
    for k, atoms in enumerate(images):
        frame = checked(atoms, f"{name}, frame {k}", periodic)
        noted = noted_charge(atoms)
        frame.info = plain_info(atoms.info | noted)
        with suppress(InputError):  # refused later, unless another charge replaces it
            frame.info |= plain_charge(noted)
        frames.append(frame)
    return frames


def plain_info(info: Mapping[Any, Any]) -> dict[str, Any]:
    """Return information about a structure with strings as keys and values of JSON's types."""
    return {str(key): json.loads(to_json(value)) for key, value in info.items()}


def plain_charge(info: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the total charge of a structure as an integer under its key, or nothing.

    Raises
    ------
    InputError
        If it is not an integer, or an array of one.
    """
    return {CHARGE: total_charge(info)} if CHARGE in info else {}


def compute_all(
    images: Sequence[Atoms], calculator: TensorNetCalculator, names: Sequence[str] | None = None
) -> Iterator[Atoms]:
    """Compute energy, forces and stress of many structures in batches.

    Parameters
    ----------
    images : sequence of Atoms
        Structures of any size and periodicity.
    calculator : TensorNetCalculator
        The calculator, whose cached results do not change.
    names : sequence of str, optional
        Names of the structures for error messages; by default their numbers.

    Yields
    ------
    Atoms
        A copy of each structure, in order, with its results attached in ASE's units.

    Raises
    ------
    MlffTritonError
        If the model cannot compute a structure, which the message names.
    """
    names = names or [f"structure {k}" for k in range(len(images))]
    for start in range(0, len(images), IMAGES_PER_CALL):
        part = slice(start, start + IMAGES_PER_CALL)
        try:
            results = calculator.calculate_many(images[part])
        except MlffTritonError as error:
            _name_the_culprit(images[part], calculator, names[part])
            raise error from None
        for atoms, result in zip(images[part], results, strict=True):
            yield with_results(atoms, result)


def _name_the_culprit(
    images: Sequence[Atoms], calculator: TensorNetCalculator, names: Sequence[str]
) -> None:
    """Raise the error of the first structure that fails on its own, with its name."""
    for atoms, name in zip(images, names, strict=True):
        with labeled(name):
            calculator.calculate_many([atoms])
