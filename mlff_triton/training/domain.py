"""The chemistry that a trained model knows, from its data and from its base model."""

from __future__ import annotations

import numpy as np

from mlff_triton.model.known_domain import KnownDomain
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.training.frames import Frames


def learned_domain(frames: Frames, base: TensorNet | None) -> KnownDomain | None:
    """Return what a model knows after training.

    Parameters
    ----------
    frames : Frames
        All structures that are trained on.
    base : TensorNet or None
        The model that is fine-tuned, with the weights that it had before.

    Returns
    -------
    KnownDomain or None
        None if nothing is known of the training set of ``base``. Electron shells are not judged in
        periodic structures, where electrons may belong to all atoms.
    """
    electrons = np.add.reduceat(frames.numbers, frames.start[:-1]) - frames.charge
    is_in_vacuum = not frames.pbc.any()
    own = KnownDomain(
        charges=tuple(sorted(map(int, set(frames.charge.tolist())))),
        closed_shells=is_in_vacuum and not (electrons % 2).any(),
        bonds=None,
        is_in_vacuum=is_in_vacuum,
    )
    if base is None:
        return own
    former = base.known_domain
    if former is None:
        return None
    return KnownDomain(
        charges=tuple(sorted({*own.charges, *former.charges})),
        closed_shells=own.closed_shells and former.closed_shells,
        bonds=None,
        is_in_vacuum=own.is_in_vacuum and former.is_in_vacuum,
        wrong=tuple(molecule for molecule in former.wrong if not _has(frames, molecule)),
    )


def _has(frames: Frames, molecule: tuple[int, ...]) -> bool:
    """Return True if a structure consists of the atoms of a molecule."""
    elements, counts = np.unique(molecule, return_counts=True)
    is_same = (frames.counts(elements.tolist()) == counts).all(axis=1) & (
        frames.n_atoms == len(molecule)
    )
    return bool(is_same.any())
