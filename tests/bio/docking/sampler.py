"""DiffDock's reverse diffusion of one ligand, written from what it computes, in NumPy and SciPy.

Poses are updated in float64, one after another (https://arxiv.org/abs/2210.01776).
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from torch_geometric.data import Batch

from mlff_triton.bio.docking.diffusion import Component, Diffusion

KINDS = "tr", "rot", "tor"
Array = NDArray[np.float64]


def twist(pos: Array, data: Any, angles: Array) -> Array:
    """Turn the bonds of a ligand by angles, one after another."""
    ligand, pos = data["ligand"], pos.copy()
    bonds = data["ligand", "ligand"].edge_index.T[ligand.edge_mask].numpy()
    for (first, second), mask, angle in zip(bonds, ligand.mask_rotate, angles, strict=True):
        axis = pos[first] - pos[second]
        rotation = Rotation.from_rotvec(axis * angle / np.linalg.norm(axis))
        pos[mask] = rotation.apply(pos[mask] - pos[second]) + pos[second]
    return pos


def update(pos: Array, data: Any, shift: Array, vector: Array, angles: Array | None) -> Array:
    """Turn, move and twist a ligand, and superpose it on the rigid one."""
    center = pos.mean(0)
    rigid = Rotation.from_rotvec(vector).apply(pos - center) + shift + center
    if angles is None or not len(angles):
        return rigid
    twisted = twist(rigid, data, angles)
    middle = twisted.mean(0)
    u, _, vt = np.linalg.svd((twisted - middle).T @ (rigid - rigid.mean(0)))
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    return (twisted - middle) @ (u * signs) @ vt + rigid.mean(0)


def coefficients(component: Component, time: float, interval: float) -> tuple[float, float]:
    """Return the factors of the score and of the noise."""
    low, high = component.smallest, component.largest
    sigma = low ** (1 - time) * high**time
    g = sigma * math.sqrt(2 * math.log(high / low))
    if component.temperature == 1:
        return g**2 * interval, g * math.sqrt(interval)
    own = math.exp(component.data * math.log(high) + (1 - component.data) * math.log(low))
    ratio = (own + sigma) / (own + sigma / component.temperature)
    factor = ratio + component.temperature * component.psi / 2
    return g**2 * interval * factor, g * math.sqrt(interval * (1 + component.psi))


def sample(model: Any, data: Any, diffusion: Diffusion, positions: Array, noise: Any) -> Array:
    """Return poses [samples, N, 3] after the diffusion from others.

    The noise has translations and rotations [S, samples, 3] and torsions [S, samples, R].
    """
    schedule = [*np.linspace(1, 0, diffusion.steps + 1)[: diffusion.count], 0.0]
    count, n_atoms = positions.shape[:2]
    parts = diffusion.translation, diffusion.rotation, diffusion.torsion
    for step, (time, after) in enumerate(pairwise(schedule)):
        batch = Batch.from_data_list([copy.copy(data) for _ in range(count)])
        dtype = data["ligand"].pos.dtype
        batch["ligand"].pos = torch.tensor(positions.reshape(-1, 3)).to(dtype)
        for nodes, n in (
            (batch["ligand"], n_atoms),
            (batch["receptor"], len(data["receptor"].pos)),
        ):
            nodes.node_t = {kind: torch.full((n * count,), time, dtype=dtype) for kind in KINDS}
        batch.complex_t = {kind: torch.full((count,), time, dtype=dtype) for kind in KINDS}
        with torch.no_grad():
            scores = [x.double().numpy().reshape(count, -1) for x in model(batch)[:3]]
        factors = [coefficients(part, time, time - after) for part in parts]
        is_last = step == diffusion.count - 1 and not diffusion.noisy_end
        moves = [
            a * score + (0 if is_last else b) * z[step].numpy()
            for (a, b), score, z in zip(factors, scores, noise, strict=True)
        ]
        angles = [None if diffusion.no_torsion else row for row in moves[2]]
        positions = np.stack(
            [
                update(pos, data, *move, angle)
                for pos, *move, angle in zip(positions, *moves[:2], angles, strict=True)
            ]
        )
    return positions
