"""Docking of many ligands, in batches of all samples of several complexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mlff_triton.bio.docking.cropping import cropped
from mlff_triton.bio.docking.diffusion import Diffusion
from mlff_triton.bio.docking.poses import Layout, Torsions
from mlff_triton.bio.docking.sampler import (
    Noise,
    Start,
    draw,
    first_positions,
    sample,
    set_time,
)
from mlff_triton.bio.models.diffdock.adapter import DockingForward
from mlff_triton.errors import InputError

POSES = 320
"""Largest number of poses in a batch, unless a single complex has more."""
FAILED = -1000.0
"""Confidence of a pose for which the model gives none, as in DiffDock."""


@dataclass(frozen=True)
class Poses:
    """Poses of a ligand, best first if there are confidences.

    Attributes
    ----------
    positions : float32 [samples, N, 3]
        Atoms in Å, in the frame of the complex.
    confidences : float32 [samples] or None
        Confidences, descending; None without a confidence model.
    """

    positions: NDArray[np.float32]
    confidences: NDArray[np.float32] | None


@dataclass(frozen=True)
class Judge:
    """A confidence model.

    Attributes
    ----------
    model : torch.nn.Module
        The model.
    complexes : sequence of HeteroData or None
        Complexes in the form of this model, in the order of the docked ones; None if they are the
        same.
    crop : float or None
        If given, residues farther than this from a ligand, in Å, are left out.
    """

    model: nn.Module
    complexes: Sequence[Any] | None = None
    crop: float | None = None


def dock(
    model: nn.Module,
    complexes: Sequence[Any],
    diffusion: Diffusion,
    *,
    samples: int = 10,
    seeds: Sequence[int] | None = None,
    judge: Judge | None = None,
    poses: int = POSES,
) -> list[Poses]:
    """Dock ligands to receptors by a score model of DiffDock, many complexes in one batch.

    The sampler is DiffDock's (https://arxiv.org/abs/2210.01776): `sample` lists what it shares with
    the original. Random numbers of a complex depend on its seed alone, not on its batch.

    Parameters
    ----------
    model : torch.nn.Module
        Score model, as ``get_model`` and ``load_state_dict`` of DiffDock return it, on its device,
        best after `mlff_triton.bio.accelerate`.
    complexes : sequence of HeteroData
        Graphs of complexes, as DiffDock makes them. Complexes with one receptor share its embedding
        if their receptors have the same tensor of positions.
    diffusion : Diffusion
        Settings.
    samples : int
        Poses of each complex.
    seeds : sequence of int, optional
        Seeds of the complexes; by default 0, 1 and so on.
    judge : Judge, optional
        Confidence model that ranks poses.
    poses : int
        Largest number of poses in a batch. If the memory does not suffice, this batch and later
        ones have half as many complexes.

    Returns
    -------
    list of Poses
        Poses of each complex. Positions are NaN where the model gives no number.

    Raises
    ------
    InputError
        If a number is invalid, lengths do not agree, or a graph is not from DiffDock.

    Examples
    --------
    >>> bio.accelerate(model)
    >>> best = dock(model, complexes, diffusion)[0].positions[0]
    """
    if samples < 1 or poses < 1:
        raise InputError(f"samples={samples} and poses={poses} are not valid: use at least 1")
    chosen = range(len(complexes)) if seeds is None else seeds
    others = complexes if judge is None or judge.complexes is None else judge.complexes
    if len(chosen) != len(complexes) or len(others) != len(complexes):
        raise InputError("there must be one seed and one complex to judge for each complex")
    work = _Work(model, complexes, diffusion, samples, chosen, judge, others)
    size, found = max(1, poses // samples), list[Poses]()
    with torch.inference_mode():
        while len(found) < len(complexes):
            part = range(len(complexes))[len(found) : len(found) + size]
            try:
                found += work.docked(part)
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
                size = len(part) // 2
    return found


@dataclass(frozen=True)
class _Work:
    """Arguments of `dock`."""

    model: nn.Module
    complexes: Sequence[Any]
    diffusion: Diffusion
    samples: int
    seeds: Sequence[int]
    judge: Judge | None
    others: Sequence[Any]

    def docked(self, part: range) -> list[Poses]:
        """Return the poses of some complexes, in one batch."""
        first = next(self.model.parameters())
        chosen = [self.complexes[k] for k in part]
        torsions = [torsions_of(data, rigid=self.diffusion.no_torsion) for data in chosen]
        layout = Layout.of(torsions, self.samples, first.device, first.dtype)
        counts = [len(each.bonds) for each in torsions]
        seeds = [self.seeds[k] for k in part]
        numbers = draw(seeds, counts, self.diffusion.count, self.samples)
        start = Start(*(x.to(first.device, first.dtype) for x in numbers[0]))
        noise = Noise(*(x.to(first.device, first.dtype) for x in numbers[1]))
        batch = gather(chosen, self.samples, first.device, first.dtype)
        if self.diffusion.crop is None:
            share_receptors(self.model, batch, chosen, self.samples)
        batch["ligand"].pos = first_positions(batch, layout, self.diffusion, start)
        pos = sample(self.model, batch, layout, self.diffusion, noise)
        confidence = self._confidence(part, batch, layout)
        return self._poses([each.turns.shape[1] for each in torsions], pos, confidence)

    def _confidence(self, part: range, batch: Any, layout: Layout) -> Tensor | None:
        """Return the confidences [B] of the poses of a batch."""
        if self.judge is None:
            return None
        model = self.judge.model
        first = next(model.parameters())
        pos = batch["ligand"].pos.to(first.device, first.dtype)
        given = [self.others[k] for k in part]
        judged = gather(given, self.samples, first.device, first.dtype)
        judged["ligand"].pos = pos
        if self.judge.crop is not None:
            judged = cropped(judged, layout, self.judge.crop)
        set_time(judged, 0.0)
        found = model(judged)
        confidence: Tensor = found[0] if isinstance(found, tuple) else found
        return confidence if confidence.ndim == 1 else confidence[:, 0]

    def _poses(self, sizes: list[int], pos: Tensor, confidence: Tensor | None) -> list[Poses]:
        """Return the poses of each complex, after waiting for them."""
        rows = pos.float().cpu().split([size * self.samples for size in sizes])
        found = [x.view(self.samples, size, 3) for x, size in zip(rows, sizes, strict=True)]
        if confidence is None:
            return [Poses(x.numpy(), None) for x in found]
        ranked = []
        known = confidence.float().cpu().nan_to_num(nan=FAILED).view(-1, self.samples)
        for x, own in zip(found, known, strict=True):
            order = own.argsort(descending=True, stable=True)
            ranked.append(Poses(x[order].numpy(), own[order].numpy()))
        return ranked


def torsions_of(data: Any, *, rigid: bool = False) -> Torsions:
    """Return the rotatable bonds of a graph; with ``rigid``, none.

    Raises
    ------
    InputError
        If the graph is not from DiffDock, or its turning atoms do not follow from the bonds.
    """
    try:
        ligand = data["ligand"]
        bonds = data["ligand", "ligand"].edge_index.T[ligand.edge_mask].cpu()
        if rigid:
            return Torsions(bonds[:0], torch.zeros(0, len(ligand.pos), dtype=torch.bool))
        turns = ligand.mask_rotate
        turns = torch.as_tensor(np.asarray(turns[0] if isinstance(turns, list) else turns))
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        raise InputError(f"the graph has no ligand as DiffDock makes it: {error}") from error
    turns = turns.reshape(len(bonds), len(ligand.pos)).bool()
    each = torch.arange(len(bonds))
    if turns[each, bonds[:, 0]].any() or not turns[each, bonds[:, 1]].all():
        raise InputError("an atom of a rotatable bond turns on the wrong side")
    return Torsions(bonds, turns)


def gather(complexes: Sequence[Any], samples: int, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a batch of some samples of each complex on a device, with only tensors."""
    from torch_geometric.data import Batch, HeteroData

    rows = []
    for data in complexes:
        bare = HeteroData()
        for store in data.node_stores + data.edge_stores:
            for name, x in store.items():
                if isinstance(x, Tensor) and not name.startswith(("node_t", "orig")):
                    is_real = x.is_floating_point()
                    bare[store._key][name] = x.to(device, dtype if is_real else None)
        rows += [bare] * samples
    return Batch.from_data_list(rows)


def share_receptors(model: nn.Module, batch: Any, complexes: Sequence[Any], samples: int) -> None:
    """Let an accelerated model compute each receptor once, as far as it can."""
    fast = model.forward
    if not isinstance(fast, DockingForward):
        return
    keys = [data["receptor"].pos.data_ptr() for data in complexes]
    unique = {key: k for k, key in reversed(list(enumerate(keys)))}
    receptors = [complexes[k] for k in unique.values()]
    order = [list(unique).index(key) for key in keys for _ in range(samples)]
    place = batch["receptor"].pos
    alone = gather(receptors, 1, place.device, place.dtype)
    residues = [len(data["receptor"].pos) for data in receptors]
    edges = [data["receptor", "receptor"].edge_index.shape[1] for data in receptors]
    index = (_chosen(sizes, order).to(place.device) for sizes in (residues, edges))
    fast.share(alone, batch, *index)


def _chosen(sizes: Sequence[int], order: Sequence[int]) -> Tensor:
    """Return the indices of the items of groups, group by group in an order."""
    groups = torch.arange(sum(sizes)).split(list(sizes))
    return torch.cat([groups[k] for k in order])
