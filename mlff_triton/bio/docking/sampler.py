"""DiffDock's reverse diffusion of a batch of complexes, queued on a device without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.docking.cropping import cropped
from mlff_triton.bio.docking.diffusion import Diffusion
from mlff_triton.bio.docking.poses import Layout, matrices
from mlff_triton.bio.models.diffdock.adapter import DockingForward

KINDS = ("tr", "rot", "tor")
"""Names under which the times of translations, rotations and torsions are stored."""
NODES = ("ligand", "receptor", "atom")
"""Kinds of nodes that have a time; all-atom models include atoms of receptors."""
SMALL = 0.01
"""Size of the scores that replace NaN, relative to the mean of the others."""


class Start(NamedTuple):
    """Random numbers of the first poses of B ligands with T rotatable bonds.

    Attributes
    ----------
    angles : [T]
        Changes of torsions in radians.
    rotations : [B, 4]
        Quaternions of any length.
    translations : [B, 3]
        Translations, in units of the width of their distribution.
    """

    angles: Tensor
    rotations: Tensor
    translations: Tensor


class Noise(NamedTuple):
    """Random numbers of S steps for B ligands with T rotatable bonds.

    Attributes
    ----------
    translations, rotations : [S, B, 3]
        Standard normal numbers.
    torsions : [S, T]
        Standard normal numbers.
    """

    translations: Tensor
    rotations: Tensor
    torsions: Tensor


def draw(
    seeds: Sequence[int], counts: Sequence[int], n_steps: int, samples: int
) -> tuple[Start, Noise]:
    """Return the random numbers of ligands, given a seed and a number of rotatable bonds each.

    The numbers of a ligand depend neither on other ligands nor on PyTorch's default dtype. Samples
    of a ligand follow each other.
    """
    starts, noises = [], []
    for seed, n_bonds in zip(seeds, counts, strict=True):
        rng = torch.Generator().manual_seed(seed)
        normal = partial(torch.randn, generator=rng, dtype=torch.float32)
        angles = torch.rand(samples * n_bonds, generator=rng, dtype=torch.float32)
        rows = normal(samples, 7)
        starts.append(Start(angles.mul(2).sub(1).mul(torch.pi), rows[:, :4], rows[:, 4:]))
        steps = normal(n_steps, samples, 6)
        torsions = normal(n_steps, samples * n_bonds)
        noises.append(Noise(steps[..., :3], steps[..., 3:], torsions))
    start = Start(*(torch.cat(parts) for parts in zip(*starts, strict=True)))
    return start, Noise(*(torch.cat(parts, 1) for parts in zip(*noises, strict=True)))


def first_positions(data: Any, layout: Layout, diffusion: Diffusion, start: Start) -> Tensor:
    """Return random positions [A, 3] in Å from which the diffusion begins."""
    receptor, count = data["receptor"], layout.shape[0]
    rows = layout.twisted(layout.rows(data["ligand"].pos), start.angles)
    width: Any = -diffusion.start * diffusion.translation.largest
    if diffusion.start >= 0:
        squares = receptor.pos.square().sum(1, keepdim=True)
        width = _means(squares, receptor.batch, count).sqrt() * diffusion.start / 1.73
    middles = _means(receptor.pos, receptor.batch, count)
    shifts = middles - layout.centers(rows)[:, 0] + start.translations * width
    return layout.flat(layout.turned(rows, matrices(start.rotations), shifts))


def sample(
    model: nn.Module, data: Any, layout: Layout, diffusion: Diffusion, noise: Noise
) -> Tensor:
    """Return the positions [A, 3] in Å of ligands after the diffusion, starting from the data.

    Every step is that of ``sampling`` in DiffDock's ``utils/sampling.py`` with the same random
    numbers. As there, a score that is not a number is replaced by a small one; only poses of the
    same ligand determine its size, see `repaired`.

    Parameters
    ----------
    model : torch.nn.Module
        Score model. If it is accelerated, only the neighbor search waits for the device, because
        the number of neighbors must be known.
    data : torch_geometric.data.Batch
        Complexes, on the device of the model. Positions of ligands and times are changed.
    layout : Layout
        Ligands of the batch.
    diffusion : Diffusion
        Settings.
    noise : Noise
        Random numbers, on the device.
    """
    fast = model.forward if isinstance(model.forward, DockingForward) else None
    ligand = data["ligand"]
    for index, step in enumerate(diffusion):
        given = data
        if diffusion.crop is not None:
            given = cropped(data, layout, step.sigma * 3 + diffusion.crop)
        set_time(given, step.time)
        if fast is not None:
            fast.prepare(given, step.time)
        scores = repaired(model(given)[:3], layout)
        moves = (
            score * factors.score + part[index] * factors.noise
            for score, factors, part in zip(scores, step.factors, noise, strict=True)
        )
        ligand.pos = layout.moved(ligand.pos, *moves)
    found: Tensor = ligand.pos
    return found


def set_time(data: Any, time: float) -> None:
    """Give all nodes and complexes a time between 0 and 1, as ``set_time`` of DiffDock does."""
    for kind in NODES:
        if kind in data.node_types:
            pos = data[kind].pos
            times = torch.full((len(pos),), time, dtype=pos.dtype, device=pos.device)
            data[kind].node_t = dict.fromkeys(KINDS, times)
    times = torch.full((data.num_graphs,), time, dtype=pos.dtype, device=pos.device)
    data.complex_t = dict.fromkeys(KINDS, times)


def repaired(scores: Sequence[Tensor], layout: Layout) -> list[Tensor]:
    """Return scores of translations, rotations and torsions without values that are not numbers.

    If a translation of a ligand is not a number, the scores of its poses that are not numbers, or
    infinite, get a hundredth of the mean size of the others, as in DiffDock.
    """
    translation = scores[0]
    count = layout.shape[0]
    wrong = translation.mean(-1).isnan().to(translation)
    wrong = wrong.new_zeros(count).index_add(0, layout.owners, wrong) > 0
    found = []
    for score, owners in zip(
        scores, (layout.owners, layout.owners, layout.bond_owners), strict=True
    ):
        flat = score if score.ndim == 2 else score[:, None]
        if not len(flat):
            found.append(score)
            continue
        known = (~flat.isnan()).to(flat)
        sums, counts = (
            flat.new_zeros(count).index_add(0, owners, x.sum(1))
            for x in (flat.abs().nan_to_num(posinf=torch.inf), known)
        )
        small = (SMALL * sums / counts)[owners][:, None]
        sign = torch.where(flat == -torch.inf, -1.0, 1.0)
        is_bad = wrong[owners][:, None] & ~flat.isfinite()
        found.append(torch.where(is_bad, small * sign, flat).view_as(score))
    return found


def _means(rows: Tensor, batch: Tensor, count: int) -> Tensor:
    """Return the means [B, C] of rows [M, C] over complexes."""
    ones = rows.new_ones(len(rows), 1)
    sums, counts = (rows.new_zeros(count, x.shape[1]).index_add(0, batch, x) for x in (rows, ones))
    return sums / counts
