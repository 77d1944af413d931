"""Finished models that explain energies or forces, but not both: a sign of wrong labels."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mlff_triton.training.consistency import turned
from mlff_triton.training.evaluation import Errors
from mlff_triton.training.frames import Array

WELL, POORLY, HARDLY = 0.9, 0.5, 0.1
"""Shares of the variance of labels: the least that a good model explains, the most that it explains
of labels that contradict these, and the most that a long training explains of labels that are
unrelated to the structures."""
LONG = 2000  # steps after which models with correct labels explain more than that
SMALLEST = 1e-3  # eV per atom by which energies must differ to exceed the errors of a good model


def doubts(errors: Mapping[str, Errors], steps: int) -> str | None:
    """Return a sentence about labels that a model should explain but does not, or None.

    Energies are those per atom, relative to the energies of the elements that explain them best.
    Structures that were trained on count as well as those to validate with: new compositions may be
    poorly explained by a model that is right, and few structures by chance.

    Parameters
    ----------
    errors : dict of Errors
        Errors by the names of parts, among them ``train`` and ``valid``.
    steps : int
        Number of steps of the training; a short one explains nothing yet.
    """
    found = [errors[name] for name in ("train", "valid")]
    energies, forces = _share_of_energies(found), _share_of_forces(found)
    if math.isnan(energies + forces):
        return None
    shares = f"R² is {energies:.2g} for energies and {forces:.2g} for forces"
    if min(energies, forces) < POORLY and max(energies, forces) > WELL:
        failed, others = ("energies", "forces") if energies < forces else ("forces", "energies")
        return (
            f"the model explains the {others} of its own training and validation set, but not the "
            f"{failed} ({shares}): their units may differ, or forces may be gradients; check "
            f"--energy-unit, --force-unit and --key forces={turned(found[0].frames.forces_key[0])}"
        )
    if max(energies, forces) < HARDLY and steps >= LONG:
        return (
            f"the model explains nothing of its own training and validation set after {steps} "
            f"steps ({shares}): labels may be of other structures, or in another order of atoms, "
            "or --lr is unsuitable"
        )
    return None


def _share_of_energies(errors: list[Errors]) -> float:
    """Return the explained share of the variance of energies; NaN if they hardly differ."""
    elements = sorted({z for found in errors for z in found.frames.elements})
    n_atoms = np.concatenate([found.frames.n_atoms for found in errors])
    counts = np.concatenate([found.frames.counts(elements) for found in errors])
    labels = np.concatenate([found.frames.energy for found in errors]) / n_atoms
    fractions = counts / n_atoms[:, None]
    labels = labels - fractions @ np.linalg.lstsq(fractions, labels, rcond=None)[0]
    if np.sqrt(np.mean(labels**2)) < SMALLEST:
        return math.nan
    return _share([labels], [found.per_atom for found in errors])


def _share_of_forces(errors: list[Errors]) -> float:
    """Return the explained share of the variance of forces; NaN if all are zero."""
    return _share([found.frames.forces for found in errors], [found.forces for found in errors])


def _share(labels: list[Array], errors: list[Array]) -> float:
    """Return the share of the sum of squares of labels that is explained; NaN if it is 0."""
    total, missing = (sum(np.vdot(a, a) for a in arrays) for arrays in (labels, errors))
    return float(1 - missing / total) if total else math.nan
