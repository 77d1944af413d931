"""Errors of a model on many structures: all of them, by element, and by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlff_triton.model.config import SYMBOLS
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.training.batches import GraphData
from mlff_triton.training.frames import Array, Frames
from mlff_triton.training.loss import Loss, errors_of

MOST_VALUES = 2**24  # edges times channels of a batch, which take 4 GB


@dataclass(frozen=True)
class Errors:
    """Errors of a model on C structures with N atoms.

    Attributes
    ----------
    frames : Frames
        The structures, with their labels.
    energy : float64 [C]
        Errors of energies in eV.
    forces : float64 [N, 3]
        Errors of forces in eV/Å.
    stress : float64 [C, 3, 3]
        Errors of stresses in eV/Å^3; NaN where none is known.
    loss : float
        The loss of all structures together; 0 if none was asked for.
    """

    frames: Frames
    energy: Array
    forces: Array
    stress: Array
    loss: float

    @property
    def per_atom(self) -> Array:
        """Errors of energies per atom in eV, float64 [C]."""
        return np.asarray(self.energy / self.frames.n_atoms)

    @property
    def known_stress(self) -> Array:
        """Errors of the stresses that are known, float64 [K, 3, 3]."""
        return np.asarray(self.stress[self.frames.has_stress])

    def by_element(self) -> dict[str, Array]:
        """Return the errors of forces by the symbols of the elements, each [n, 3]."""
        numbers = self.frames.numbers
        return {SYMBOLS[z]: self.forces[numbers == z] for z in self.frames.elements}

    def by_group(self) -> dict[str, tuple[Array, Array]]:
        """Return errors of energies per atom [n] and of forces [n, 3] by the names of groups."""
        names, group = np.unique(self.frames.group, return_inverse=True)
        order, frames = _by_key(group, len(names))
        of_atoms, atoms = _by_key(group[self.frames.owner], len(names))
        energies = np.split(self.per_atom[order], frames)
        forces = np.split(self.forces[of_atoms], atoms)
        return dict(zip(map(str, names), zip(energies, forces, strict=True), strict=True))


def evaluate(
    model: TensorNet,
    data: GraphData,
    chosen: Tensor,
    loss: Loss | None = None,
    most: int = MOST_VALUES,
) -> Errors:
    """Compute the errors of a model on some structures, which are on its device.

    Parameters
    ----------
    model : TensorNet
        The model.
    data : GraphData
        The structures.
    chosen : int64 [C]
        Indices of those to evaluate.
    loss : Loss, optional
        A loss to compute.
    most : int
        Edges times channels of a batch, which the memory that it takes is proportional to.

    Returns
    -------
    Errors
    """
    results, sums = [], []
    for some in data.parts(chosen, most // model.config.hidden_channels):
        batch = data.batch(some)
        errors = errors_of(model, batch, create_graph=False)
        results.append([errors.energy, errors.forces.double(), errors.virial])
        if loss is not None:
            sums.append(loss.sums(errors, batch))
    frames = data.frames.select(chosen.numpy())
    energy, forces, virial = (
        torch.cat(list(column)).cpu().numpy() for column in zip(*results, strict=True)
    )
    volume = np.abs(np.linalg.det(frames.cell))[:, None, None]
    known = frames.has_stress[:, None, None]
    stress = np.divide(virial, volume, out=np.full_like(virial, np.nan), where=known)
    value = 0.0 if loss is None else float(loss.total(torch.stack(sums).sum(0)))
    return Errors(frames, energy, forces, stress, value)


def _by_key(keys: Array, count: int) -> tuple[Array, Array]:
    """Return the order that sorts by keys below a count, and where each but the first begins."""
    return np.argsort(keys, kind="stable"), np.cumsum(np.bincount(keys, minlength=count))[:-1]


def mae(errors: Array) -> float:
    """Return the mean absolute error; NaN without errors."""
    return float(np.abs(errors).mean()) if errors.size else float("nan")


def rmse(errors: Array) -> float:
    """Return the root mean square error; NaN without errors."""
    return float(np.sqrt(np.square(errors).mean())) if errors.size else float("nan")
