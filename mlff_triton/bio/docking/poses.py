"""Poses of a batch of ligands of any size, which move, turn and twist together on a device.

Nothing here waits for the device. Updates are those of DiffDock (https://arxiv.org/abs/2210.01776,
section 4.1): a rotation about the center, a translation, and torsions, after which the twisted
ligand is superposed on the rigid one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SQUARINGS = 30
"""Squarings that turn a matrix into the projector on its largest eigenvalue."""


class Torsions(NamedTuple):
    """Rotatable bonds of a ligand of N atoms.

    Attributes
    ----------
    bonds : int64 [R, 2]
        Atoms of bonds. The second atom is part of the turning group.
    turns : bool [R, N]
        Atoms that turn.
    """

    bonds: Tensor
    turns: Tensor


class Layout(NamedTuple):
    """Atoms [A] and rotatable bonds [T] of B poses in padded rows of N atoms and R bonds.

    The poses of a ligand follow each other.

    Attributes
    ----------
    shape : tuple of int
        B, N and R.
    atoms : int64 [A]
        Position of each atom in the flattened rows.
    bonds : int64 [T]
        Position of each rotatable bond in the flattened rows.
    weights : [B, N, 1]
        Factors of atoms in the mean over a ligand, zero for padding.
    ends : int64 [R, 2, B]
        Positions in the flattened rows of both atoms of bonds.
    turns : bool [R, B, N, 1]
        Atoms that turn about bonds.
    is_flexible : bool [B, 1, 1]
        True for ligands with rotatable bonds.
    owners, bond_owners : int64 [B], [T]
        Ligand of each pose and of each rotatable bond; the batch has several poses per ligand.
    """

    shape: tuple[int, int, int]
    atoms: Tensor
    bonds: Tensor
    weights: Tensor
    ends: Tensor
    turns: Tensor
    is_flexible: Tensor
    owners: Tensor
    bond_owners: Tensor

    @classmethod
    def of(
        cls, ligands: Sequence[Torsions], samples: int, device: torch.device, dtype: torch.dtype
    ) -> Layout:
        """Lay out some poses of each ligand."""
        owners = torch.arange(len(ligands)).repeat_interleave(samples)
        ligands = [ligand for ligand in ligands for _ in range(samples)]
        sizes = [ligand.turns.shape[1] for ligand in ligands]
        counts = [len(ligand.bonds) for ligand in ligands]
        b, n, r = len(ligands), max(sizes), max(counts)
        weights = torch.zeros(b, n, 1, dtype=torch.float64)
        ends = torch.arange(b).mul(n).repeat(r, 2, 1)
        turns = torch.zeros(r, b, n, 1, dtype=torch.bool)
        for k, (bonds, moves) in enumerate(ligands):
            weights[k, : sizes[k]] = 1 / sizes[k]
            ends[: counts[k], :, k] += bonds
            turns[: counts[k], k, : sizes[k], 0] = moves
        found = cls(
            (b, n, r),
            _positions(sizes, n),
            _positions(counts, r),
            weights.to(dtype),
            ends,
            turns,
            torch.tensor(counts)[:, None, None] > 0,
            owners,
            owners.repeat_interleave(torch.tensor(counts)),
        )
        return cls(found.shape, *(x.to(device) for x in found[1:]))

    def rows(self, pos: Tensor) -> Tensor:
        """Return positions [A, 3] in padded rows [B, N, 3]."""
        b, n, _ = self.shape
        return pos.new_zeros(b * n, 3).index_copy(0, self.atoms, pos).view(b, n, 3)

    def flat(self, rows: Tensor) -> Tensor:
        """Return padded rows [B, N, 3] as positions [A, 3]."""
        return rows.flatten(0, 1)[self.atoms]

    def centers(self, rows: Tensor) -> Tensor:
        """Return the means [B, 1, 3] over the atoms of ligands."""
        return (rows * self.weights).sum(1, keepdim=True)

    def turned(self, rows: Tensor, rotations: Tensor, translations: Tensor) -> Tensor:
        """Return ligands turned about their centers by [B, 3, 3] and translated by [B, 3]."""
        centers = self.centers(rows)
        return (rows - centers) @ rotations.mT + translations[:, None] + centers

    def twisted(self, rows: Tensor, angles: Tensor) -> Tensor:
        """Return ligands whose bonds turn by angles [T] in radians, one after another."""
        b, _, r = self.shape
        if not r:
            return rows
        all_angles = angles.new_zeros(b * r).index_copy(0, self.bonds, angles)
        all_angles = all_angles.view(b, r).T[..., None, None]
        for ends, turns, cos, sin in zip(
            self.ends, self.turns, all_angles.cos(), all_angles.sin(), strict=True
        ):
            first, second = rows.flatten(0, 1)[ends][..., None, :]
            axis = torch.nn.functional.normalize(first - second, dim=-1)
            arms = rows - second
            along = (arms * axis).sum(-1, keepdim=True) * axis
            across = torch.linalg.cross(axis.expand_as(arms), arms)
            rotated = arms * cos + across * sin + along * (1 - cos)
            rows = torch.where(turns, rotated + second, rows)
        return rows

    def moved(self, pos: Tensor, translations: Tensor, rotations: Tensor, angles: Tensor) -> Tensor:
        """Return positions [A, 3] after an update of poses.

        Parameters
        ----------
        pos : [A, 3]
            Positions in Å.
        translations : [B, 3]
            Translations in Å.
        rotations : [B, 3]
            Rotation vectors, of the length of their angles in radians.
        angles : [T]
            Changes of torsions in radians.
        """
        rigid = self.turned(self.rows(pos), matrices(quaternions(rotations)), translations)
        if not self.shape[2]:
            return self.flat(rigid)
        twisted = self.superposed(self.twisted(rigid, angles), rigid)
        return self.flat(torch.where(self.is_flexible, twisted, rigid))

    def superposed(self, rows: Tensor, target: Tensor) -> Tensor:
        """Return ligands turned and translated for the best fit to others [B, N, 3]."""
        center, aim = self.centers(rows), self.centers(target)
        weights = self.weights.double()
        arms, others = (rows - center).double(), (target - aim).double()
        correlation = (arms * weights).mT @ others
        best = matrices(_largest(_horn(correlation)))
        return ((rows - center) @ best.to(rows.dtype).mT) + aim


def quaternions(vectors: Tensor) -> Tensor:
    """Return the unit quaternions [B, 4] of rotation vectors [B, 3]."""
    half = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) / 2
    return torch.cat([half.cos(), vectors * torch.sinc(half / torch.pi) / 2], -1)


def matrices(quaternion: Tensor) -> Tensor:
    """Return the rotation matrices [B, 3, 3] of quaternions [B, 4] of any length but zero."""
    w, x, y, z = torch.nn.functional.normalize(quaternion, dim=-1).unbind(-1)
    entries = (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        *(2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        *(2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    )
    found: Tensor = torch.stack(entries, -1).unflatten(-1, (3, 3))
    return found


def _horn(correlation: Tensor) -> Tensor:
    """Return Horn's matrices [B, 4, 4] of correlations [B, 3, 3] of ligands with others.

    The eigenvector of the largest eigenvalue is the quaternion of the best rotation: J. Opt. Soc.
    Am. A 4, 629 (1987).
    """
    xx, xy, xz, yx, yy, yz, zx, zy, zz = correlation.flatten(1).unbind(1)
    entries = (
        *(xx + yy + zz, yz - zy, zx - xz, xy - yx),
        *(yz - zy, xx - yy - zz, xy + yx, zx + xz),
        *(zx - xz, xy + yx, yy - xx - zz, yz + zy),
        *(xy - yx, zx + xz, yz + zy, zz - xx - yy),
    )
    found: Tensor = torch.stack(entries, -1).unflatten(-1, (4, 4))
    return found


def _largest(matrix: Tensor) -> Tensor:
    """Return an eigenvector [B, 4] of the largest eigenvalue of symmetric matrices [B, 4, 4].

    It is a column of a power of the matrix. Unlike solvers, this does not wait for a GPU.
    """
    size = torch.linalg.vector_norm(matrix, dim=(-2, -1), keepdim=True)
    one = torch.eye(4, dtype=matrix.dtype, device=matrix.device)
    power = matrix + (size + torch.finfo(matrix.dtype).tiny) * one  # no eigenvalue is negative
    power = power / _trace(power)
    for _ in range(SQUARINGS):
        power = power @ power
        power = power / _trace(power)
    best = power.diagonal(dim1=-2, dim2=-1).argmax(-1)
    column: Tensor = power.gather(-1, best[:, None, None].expand(-1, 4, 1))
    return column.squeeze(-1)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]


def _positions(sizes: Sequence[int], width: int) -> Tensor:
    """Return the positions of items in flattened rows of a width, given the sizes of the rows."""
    return torch.cat([torch.arange(size) + k * width for k, size in enumerate(sizes)])
