"""Checks of data and options for the training of partial charges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mlff_triton.errors import InputError
from mlff_triton.model.config import TensorNet2Config
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.neighbors.box import Box
from mlff_triton.training.frames import Frames
from mlff_triton.training.labels import DIPOLE_UNITS, OF_CHARGES, Labels
from mlff_triton.training.loss import Loss
from mlff_triton.training.settings import Data

MIN_COMPARED = 5
"""Number of structures with partial charges and a dipole by which units are judged."""
MIN_CORRELATION = 0.95  # of dipoles with those of partial charges, by which evidence is clear
UNIT_TOLERANCE = 0.2  # relative deviation of their ratio from that of units
MIN_FACTOR = 4.0
"""Least ratio of units, such as 4.8 of e Å and Debye. The dipoles of many partial charges are too
small by a factor of two, but hardly by four."""


def charged_data(data: Data, loss: Loss, *, has_charges: bool) -> Data:
    """Return data whose partial charges and dipoles are read if the model has charges.

    Raises
    ------
    InputError
        If the model has none and an option is about charges or dipoles.
    """
    if has_charges:
        return replace(data, labels=replace(data.labels, with_charges=True))
    chosen = {
        **{f"--key {label}": label in data.labels.keys for label in OF_CHARGES},
        "--dipole-unit": data.labels.dipole_unit != Labels().dipole_unit,
        "--charge-weight": loss.charge != Loss().charge,
        "--dipole-weight": loss.dipole != Loss().dipole,
    }
    for option, is_used in chosen.items():
        if is_used:
            raise InputError(
                f"{option} needs a model with charges: use --charges, or another --from"
            )
    return data


def check_charged(model: TensorNet, frames: Frames, say: Callable[[str], None]) -> None:
    """Report how many structures have charges and dipoles, if the model has charges.

    Raises
    ------
    InputError
        If the Coulomb energy is not defined in the cell of a structure, which the line names, or is
        by particle-mesh Ewald.
    """
    if not model.has_charges or not isinstance(model.config, TensorNet2Config):
        return
    if model.uses_mesh:
        raise InputError(
            "models whose Coulomb energy is by particle-mesh Ewald are not trained: give --from "
            "one with a reaction field, and load the result with coulomb='pme'"
        )
    for k in np.flatnonzero(frames.pbc.any(axis=1)):
        if model.config.coulomb_cutoff is None:
            raise InputError(
                f"{frames.name[k]} is periodic, and the Coulomb energy is that of all pairs: use "
                "--coulomb-cutoff 6, or with --from a model with a cutoff"
            )
        try:
            model.check_box(Box.of(frames.cell[k], frames.pbc[k]))
        except InputError as error:
            raise InputError(f"{frames.name[k]}: {error}") from error
    charges, dipoles = int(frames.has_charges.sum()), int(frames.has_dipole.sum())
    say(f"of {len(frames)} structures, {charges} have partial charges and {dipoles} have a dipole")


def check_dipoles(frames: Frames, labels: Labels, *, can_change: bool = True) -> None:
    """Raise `InputError` if dipoles clearly contradict the partial charges of the same structures.

    Those of neutral structures are compared. Nothing is raised if these are too few, or if the
    partial charges explain the dipoles badly.

    Parameters
    ----------
    frames : Frames
        All structures.
    labels : Labels
        Names and units by which they were read.
    can_change : bool
        True if options can change these names and units, so that the message names them.

    Raises
    ------
    InputError
        If dipoles are in Debye instead of e Å, or the reverse, or have the opposite sign.
    """
    chosen = frames.has_charges & frames.has_dipole & (frames.charge == 0)
    if np.count_nonzero(chosen) < MIN_COMPARED:
        return
    products = np.nan_to_num(frames.charges)[:, None] * frames.positions
    implied = np.add.reduceat(products, frames.start[:-1])[chosen]
    given = frames.dipole[chosen]
    sizes = float(np.linalg.norm(implied) * np.linalg.norm(given))
    correlation = float(np.vdot(implied, given)) / sizes if sizes else 0.0
    if abs(correlation) < MIN_CORRELATION:
        return
    ratio = correlation * float(np.linalg.norm(given) / np.linalg.norm(implied))
    reason = f"dipoles are {ratio:.3g} times those of the partial charges of the same structures"
    if ratio < 0:
        name = labels.keys.get("dipole", "NAME")
        turned = name.removeprefix("-") if name.startswith("-") else f"-{name}"
        remedy = f"--key dipole={turned} takes the negative" if can_change else "correct the signs"
        raise InputError(f"{reason}: {remedy}")
    for unit in ("Debye", "e*A"):
        expected = labels.dipole / DIPOLE_UNITS[unit]
        is_far = not 1 / MIN_FACTOR < expected < MIN_FACTOR
        if is_far and abs(ratio / expected - 1) < UNIT_TOLERANCE:
            remedy = f"add --dipole-unit {unit}" if can_change else "correct the units"
            raise InputError(f"{reason}, as if they were in {unit}: {remedy}")
