"""Energies of the elements, fitted to the training set by least squares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mlff_triton.model.tensornet import TensorNet
from mlff_triton.training.batches import GraphData
from mlff_triton.training.evaluation import Errors, evaluate, rmse
from mlff_triton.training.frames import Array

MOST = 10_000
"""Number of structures to fit to; fewer would do, because a fit has one number per element."""
LEAST = 200
"""Number of structures with each element, if there are that many."""


def fit_references(model: TensorNet, data: GraphData, chosen: Tensor) -> Array:
    """Change the energies of the elements so that the model explains the labels best.

    The change is the smallest that minimizes the squared errors of energies per atom. Elements that
    the structures lack keep their energies. If there are many structures, `sample` chooses some.

    Parameters
    ----------
    model : TensorNet
        The model. Modified in place.
    data : GraphData
        The structures, on its device.
    chosen : int64 [C]
        Indices of the structures to fit to.

    Returns
    -------
    float64 [elements]
        Change of the energy of each element in eV.
    """
    return _fit(model, evaluate(model, data, sample(data, chosen, model.config.elements)))


def _fit(model: TensorNet, errors: Errors) -> Array:
    """Do the same from the errors of the model on the structures to fit to."""
    counts = errors.frames.counts(model.config.elements)
    fractions = counts / errors.frames.n_atoms[:, None]
    change = np.linalg.lstsq(fractions, -errors.per_atom, rcond=None)[0]
    model.references += torch.from_numpy(change).to(model.references.device)
    return np.asarray(change)


def fit_scale(model: TensorNet, data: GraphData, chosen: Tensor) -> None:
    """Set the energies of the elements and the scale of a new network.

    The network is left out of the fit: only its nuclear repulsion counts, if it has one. The scale
    is the root mean square of the forces that remain, in eV/Å, used as an energy in eV. It is 1 for
    models with partial charges, because it would scale their Coulomb energy. Arguments are those of
    `fit_references`.
    """
    model.std.zero_()
    errors = evaluate(model, data, sample(data, chosen, model.config.elements))
    _fit(model, errors)
    if model.has_charges:
        model.std.fill_(1.0)
        return
    model.std.fill_(rmse(errors.forces) or 1.0)  # which energies of the elements do not change


def sample(data: GraphData, chosen: Tensor, elements: Sequence[int]) -> Tensor:
    """Choose some of many structures, among them enough with each element.

    Parameters
    ----------
    data : GraphData
        The structures.
    chosen : int64 [C]
        Indices of the structures to choose from.
    elements : sequence of int
        Atomic numbers.

    Returns
    -------
    int64 [n]
        All of ``chosen`` if there are few. Otherwise about `MOST`, in the same order.
    """
    if len(chosen) <= MOST:
        return chosen
    counts = data.frames.counts(elements)[chosen.numpy()]
    kept = np.zeros(len(chosen), dtype=bool)
    kept[_spaced(np.arange(len(chosen)), MOST)] = True
    for column in counts.T:
        kept[_spaced(np.flatnonzero(column), LEAST)] = True
    return chosen[torch.from_numpy(kept)]


def _spaced(values: Array, most: int) -> Array:
    """Return at most ``most`` evenly spaced values."""
    return values[np.linspace(0, len(values) - 1, min(most, len(values))).astype(np.int64)]
