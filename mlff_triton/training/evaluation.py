"""Errors of a model on many structures: all of them, by element, and by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlff_triton.model.config import SYMBOLS
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.training.batches import Batch, GraphData
from mlff_triton.training.frames import Array, Frames
from mlff_triton.training.loss import Loss, errors_of


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
        Mean of the losses of batches; 0 if none was asked for.
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
        found = {}
        owner = self.frames.group[self.frames.owner]
        for name in sorted(set(self.frames.group)):
            found[str(name)] = (
                self.per_atom[self.frames.group == name],
                self.forces[owner == name],
            )
        return found


def evaluate(
    model: TensorNet, data: GraphData, chosen: Tensor, size: int, loss: Loss | None = None
) -> Errors:
    """Compute the errors of a model on some structures.

    Parameters
    ----------
    model : TensorNet
        The model.
    data : GraphData
        The structures.
    chosen : int64 [C]
        Indices of those to evaluate.
    size : int
        Structures per batch.
    loss : Loss, optional
        A loss to average.

    Returns
    -------
    Errors
    """
    results, losses = [], []
    for some in chosen.split(size):
        batch = on_device_of(model, data.batch(some))
        errors = errors_of(model, batch, create_graph=False)
        results.append([errors.energy, errors.forces.double(), errors.virial])
        if loss is not None:
            losses.append(float(loss.of(errors, batch)) * len(some))
    frames = data.frames.select(chosen.numpy())
    energy, forces, virial = (
        torch.cat(list(column)).cpu().numpy() for column in zip(*results, strict=True)
    )
    volume = np.abs(np.linalg.det(frames.cell))[:, None, None]
    known = frames.has_stress[:, None, None]
    stress = np.divide(virial, volume, out=np.full_like(virial, np.nan), where=known)
    return Errors(frames, energy, forces, stress, sum(losses) / len(chosen))


def on_device_of(model: TensorNet, batch: Batch) -> Batch:
    """Copy a batch to the device of a model."""
    return {name: tensor.to(model.std.device) for name, tensor in batch.items()}


def mae(errors: Array) -> float:
    """Return the mean absolute error; NaN without errors."""
    return float(np.abs(errors).mean()) if errors.size else float("nan")


def rmse(errors: Array) -> float:
    """Return the root mean square error; NaN without errors."""
    return float(np.sqrt(np.square(errors).mean())) if errors.size else float("nan")
