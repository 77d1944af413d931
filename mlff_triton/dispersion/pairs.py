"""Pairs of atoms within the cutoff of dispersion, on the device and in a fixed order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton.dispersion.contribution import CUTOFF
from mlff_triton.engine.batch import Batch
from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import Box, FloatArray
from mlff_triton.units import BOHR

MOST_PAIRS = 2**31 - 1  # which int32 counts
BLOCK = 1 << 24  # distances at a time


class PairList(NamedTuple):
    """Pairs of all systems of a batch, each in both directions, sorted by the first atom.

    Attributes
    ----------
    positions : float64 [N, 3]
        Positions in Bohr, wrapped into the cell.
    cells : float64 [B, 3, 3]
        Lattice vectors (rows) in Bohr.
    ptr : int32 [N + 1]
        The pairs of atom i are ``ptr[i]:ptr[i + 1]``.
    others : int32 [P]
        Second atom of each pair.
    shifts : int32 [P, 3]
        Lattice translation of the second atom.
    """

    positions: Tensor
    cells: Tensor
    ptr: Tensor
    others: Tensor
    shifts: Tensor


def find_pairs(batch: Batch, device: torch.device) -> PairList:
    """Find the pairs of each system by the distances of its atoms to all images of atoms.

    Raises
    ------
    InputError
        If there are too many pairs.
    """
    positions, counts, others, shifts = [], [], [], []
    first = n_pairs = 0
    for system in batch.systems():
        box = Box(system.boxes[0].cell / BOHR, system.boxes[0].pbc)
        own = torch.from_numpy(_wrapped(system.positions / BOHR, box)).to(device)
        index, translation = _images(own, box)
        moved = own[index] + translation @ torch.from_numpy(box.cell).to(device)
        index, translation = index.int(), translation.int()
        size = max(1, BLOCK // len(moved))
        for start in range(0, len(own), size):
            is_pair = _within_cutoff(own[start : start + size], moved, start)
            counts.append(is_pair.sum(1))
            found = is_pair.nonzero()[:, 1]
            n_pairs += len(found)
            if n_pairs > MOST_PAIRS:
                raise InputError(
                    f"dispersion of {len(batch.numbers)} atoms has more pairs within "
                    f"{CUTOFF * BOHR:.1f} Å than a list can hold: compute smaller batches"
                )
            others.append(index[found] + first)
            shifts.append(translation[found])
        positions.append(own)
        first += len(own)
    ptr = torch.zeros(first + 1, dtype=torch.int32, device=device)
    torch.cumsum(torch.cat(counts), 0, dtype=torch.int32, out=ptr[1:])
    cells = np.stack([box.cell for box in batch.boxes]) / BOHR
    return PairList(
        torch.cat(positions),
        torch.from_numpy(cells).to(device),
        ptr,
        torch.cat(others),
        torch.cat(shifts),
    )


def _within_cutoff(own: Tensor, moved: Tensor, start: int) -> Tensor:
    """Return True for images within the cutoff of an atom, bool; no atom pairs with itself.

    The first images are the atoms themselves; ``own`` begins at ``start`` among them.
    """
    squares = torch.zeros((len(own), len(moved)), dtype=own.dtype, device=own.device)
    for axis in range(3):
        squares += (own[:, axis, None] - moved[:, axis]).square_()
    squares.diagonal(start).fill_(torch.inf)
    return squares < CUTOFF**2


def _wrapped(points: FloatArray, box: Box) -> FloatArray:
    """Return positions inside the cell, in its periodic directions."""
    turns = np.floor(points @ np.linalg.inv(box.cell)) * box.pbc
    return np.asarray(points - turns @ box.cell)


def _images(own: Tensor, box: Box) -> tuple[Tensor, Tensor]:
    """Return the atom, int64 [M], and the lattice translation, float64 [M, 3], of each image.

    They include all images within the cutoff of any atom. The atoms themselves come first.
    """
    inverse = np.linalg.inv(box.cell)
    reach = CUTOFF * np.linalg.norm(inverse, axis=0)  # in fractional coordinates
    most = np.where(box.pbc, np.ceil(reach), 0).astype(int)
    ranges = np.meshgrid(*(np.arange(-n, n + 1) for n in most), indexing="ij")
    cells = np.stack(ranges, axis=-1).reshape(-1, 3)
    cells = np.concatenate([[[0, 0, 0]], cells[cells.any(axis=1)]]).astype(np.float64)
    tensors = (torch.from_numpy(x).to(own.device) for x in (inverse, reach, cells, box.pbc))
    to_fractions, reaches, translations, is_periodic = tensors
    fractions = own @ to_fractions
    where = fractions + translations[:, None]  # [cells, N, 3]
    is_above = where >= fractions.min(0).values - reaches
    is_below = where <= fractions.max(0).values + reaches
    is_near = (is_above & is_below | ~is_periodic).all(2)
    is_near[0] = True
    of_cell, atoms = is_near.nonzero(as_tuple=True)
    return atoms, translations[of_cell]
