"""Errors of a model on many structures: all of them, by element, and by group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mlff_triton.model.config import SYMBOLS
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.training.batches import Batch, GraphData
from mlff_triton.training.frames import Array, Frames
from mlff_triton.training.loss import RELATIVE, BatchErrors, Loss, errors_of

BYTES = 500  # bytes that a batch takes per edge and channel
SHARE = 8  # of the memory of a GPU that a batch may take
HOST_BYTES = 2**29  # that a batch may take on a CPU


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
    charges : float64 [N]
        Errors of partial charges in elementary charges; NaN where unknown.
    dipole : float64 [C, 3]
        Errors of dipoles in e Å; NaN where unknown.
    loss : float
        The loss of all structures together; 0 if not requested.
    """

    frames: Frames
    energy: Array
    forces: Array
    stress: Array
    charges: Array
    dipole: Array
    loss: float

    @property
    def per_atom(self) -> Array:
        """Errors of energies per atom in eV, float64 [C]."""
        return np.asarray(self.energy / self.frames.n_atoms)

    @property
    def known_stress(self) -> Array:
        """Errors of the stresses that are known, float64 [K, 3, 3]."""
        return np.asarray(self.stress[self.frames.has_stress])

    @property
    def known_charges(self) -> Array:
        """Errors of the partial charges that are known, float64 [K]."""
        return np.asarray(self.charges[np.isfinite(self.charges)])

    @property
    def known_dipoles(self) -> Array:
        """Lengths of the errors of the dipoles that are known, float64 [K]."""
        lengths = np.linalg.norm(self.dipole, axis=1)
        return np.asarray(lengths[np.isfinite(lengths)])

    @property
    def relative(self) -> Array:
        """Errors in eV of energies relative to the mean of their series, float64 [S].

        They are those of the structures in `in_series`.
        """
        unit = self.frames.unit
        means = np.bincount(unit, self.energy) / np.bincount(unit)
        return np.asarray((self.energy - means[unit])[self.in_series])

    @property
    def in_series(self) -> Array:
        """True for structures that share a series with others, bool [C]."""
        unit = self.frames.unit
        return np.asarray(np.bincount(unit)[unit] > 1)

    def by_element(self) -> dict[str, tuple[Array, Array]]:
        """Return errors of forces [n, 3] and known charges [k] by the symbols of the elements."""
        found = {}
        for z in self.frames.elements:
            chosen = self.frames.numbers == z
            charges = self.charges[chosen]
            found[SYMBOLS[z]] = self.forces[chosen], charges[np.isfinite(charges)]
        return found

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
    most: int | None = None,
) -> Errors:
    """Compute the errors of a model on some structures, which are on its device.

    Parameters
    ----------
    model : TensorNet
        The model.
    data : GraphData
        The structures.
    chosen : int64 [C]
        Indices of the structures to evaluate.
    loss : Loss, optional
        A loss to compute.
    most : int, optional
        Largest number of edges of a batch with more than one structure. By default, a batch takes
        at most an eighth of the memory of a GPU.

    Returns
    -------
    Errors
    """
    results, sums = [], []
    for some, batch in batches_of(model, data, chosen, most):
        errors = errors_of(model, batch, create_graph=False)
        counts = len(some), data.n_atoms(some)
        results.append([column[:n].double() for column, n in _columns(errors, *counts)])
        if loss is not None:
            sums.append(loss.sums(errors, batch))
    frames = data.frames.select(chosen.numpy())
    energy, forces, virial, charges, dipole = (
        torch.cat(list(column)).cpu().numpy() for column in zip(*results, strict=True)
    )
    volume = np.abs(np.linalg.det(frames.cell))[:, None, None]
    known = frames.has_stress[:, None, None]
    stress = np.divide(virial, volume, out=np.full_like(virial, np.nan), where=known)
    charges = np.where(frames.has_charges[frames.owner], charges, np.nan)
    dipole = np.where(frames.has_dipole[:, None], dipole, np.nan)
    found = Errors(frames, energy, forces, stress, charges, dipole, 0.0)
    return found if loss is None else replace(found, loss=_total(loss, sums, found))


def _total(loss: Loss, sums: list[Tensor], errors: Errors) -> float:
    """Return the loss of batches, and of series that may be split between batches."""
    total = torch.stack(sums).sum(0).cpu()
    weight = errors.frames.weight[errors.in_series]
    total[:, RELATIVE] += loss.relative_sums(*map(torch.from_numpy, (errors.relative, weight)))
    return float(loss.total(total))


def batches_of(
    model: TensorNet, data: GraphData, chosen: Tensor, most: int | None = None
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield indices of structures and large batches of them, on the device of a model.

    On a GPU, filler gives all batches one size, so that they use the same memory: allocating new
    blocks for each batch takes longer than computing it. Arguments are those of `evaluate`.
    """
    parts = list(data.parts(chosen, most or most_edges(model)))
    size = data.common_size(parts) if parts and pads(model) else None
    for some in parts:
        yield some, data.batch(some, size)


def pads(model: TensorNet) -> bool:
    """Return True if batches that a model evaluates are to have one size."""
    return bool(model.std.is_cuda)


def most_edges(model: TensorNet) -> int:
    """Return the number of edges of a large batch that fits in memory."""
    room, device = HOST_BYTES, model.std.device
    if device.type == "cuda":
        room = torch.cuda.get_device_properties(device).total_memory // SHARE
    return room // (BYTES * model.config.hidden_channels)


def _columns(errors: BatchErrors, n_structures: int, n_atoms: int) -> list[tuple[Tensor, int]]:
    """Return the errors of all labels without filler; NaN for labels that a model lacks."""
    charges, dipole = errors.charges, errors.dipole
    if charges is None or dipole is None:
        charges, dipole = errors.forces[:, 0] * math.nan, errors.virial[:, 0] * math.nan
    columns = errors.energy, errors.forces, errors.virial, charges, dipole
    rows = n_structures, n_atoms, n_structures, n_atoms, n_structures
    return list(zip(columns, rows, strict=True))


def _by_key(keys: Array, count: int) -> tuple[Array, Array]:
    """Return the order that sorts by keys below a count, and where each but the first begins."""
    return np.argsort(keys, kind="stable"), np.cumsum(np.bincount(keys, minlength=count))[:-1]


def mae(errors: Array) -> float:
    """Return the mean absolute error; NaN without errors."""
    return float(np.abs(errors).mean()) if errors.size else float("nan")


def rmse(errors: Array) -> float:
    """Return the root mean square error; NaN without errors."""
    return float(np.sqrt(np.square(errors).mean())) if errors.size else float("nan")
