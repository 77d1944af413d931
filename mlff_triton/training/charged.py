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
from mlff_triton.training.labels import OF_CHARGES, Labels
from mlff_triton.training.loss import Loss
from mlff_triton.training.settings import Data


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
