"""Updates of poses of several ligands at once, compared with each one's own in SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("e3nn", reason="e3nn is not installed")
pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")

from mlff_triton.bio.docking.poses import Layout, matrices, quaternions
from mlff_triton.bio.docking.screening import torsions_of
from tests.bio.docking import complexes, sampler

SIZES = [(6, 9), (2, 7), (9, 8), (1, 3), (4, 5)]


def layout_of(found: list, samples: int = 1, dtype: torch.dtype = torch.float64) -> Layout:
    return Layout.of([torsions_of(data) for data in found], samples, torch.device("cpu"), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [1e-9, 0.1, 3.0])
def test_poses_move_as_alone(scale: float, dtype: torch.dtype) -> None:
    found = [complexes.make(*size, seed, dtype=dtype) for seed, size in enumerate(SIZES)]
    layout, rng = layout_of(found, dtype=dtype), np.random.default_rng(0)
    shifts, vectors = scale * rng.normal(size=(2, len(found), 3))
    angles = [scale * rng.normal(size=len(data["ligand"].mask_rotate)) for data in found]
    pos = torch.cat([data["ligand"].pos for data in found])
    given = (torch.tensor(x).to(dtype) for x in (shifts, vectors, np.concatenate(angles)))
    moved = layout.moved(pos, *given).split([size[0] for size in SIZES])
    for k, data in enumerate(found):
        own = data["ligand"].pos.double().numpy()
        expected = sampler.update(own, data, shifts[k], vectors[k], angles[k])
        error = np.abs(moved[k].double().numpy() - expected).max()
        assert error < (1e-12 if dtype == torch.float64 else 2e-5)


def test_rigid_ligands() -> None:
    found = [complexes.make(6, 4, seed, dtype=torch.float64) for seed in range(2)]
    pos = torch.cat([data["ligand"].pos for data in found])
    numbers = torch.randn(2, 2, 3, dtype=torch.float64)
    rigid = [torsions_of(data, rigid=True) for data in found]
    layout = Layout.of(rigid, 1, torch.device("cpu"), torch.float64)
    moved = layout.moved(pos, *numbers, torch.empty(0))
    for k, part in enumerate(moved.split(6)):
        own = found[k]["ligand"].pos.numpy()
        expected = sampler.update(own, found[k], *(x[k].numpy() for x in numbers), None)
        assert np.abs(part.numpy() - expected).max() < 1e-12


@pytest.mark.parametrize("shape", ["line", "plane", "point", "mirror image"])
def test_degenerate_ligands_are_superposed(shape: str) -> None:
    """Rotations are proper, and fit as well as they can."""
    data = complexes.make(6, 4, 0, dtype=torch.float64)
    layout, rows = layout_of([data]), torch.randn(1, 6, 3, dtype=torch.float64)
    keep = {"line": (1, 0, 0), "plane": (1, 1, 0), "point": (0, 0, 0)}.get(shape, (1, 1, 1))
    rows = rows * torch.tensor(keep)
    turn = matrices(torch.tensor([[0.3, -0.5, 0.7, 0.2]], dtype=torch.float64))
    target = rows @ turn.mT + 2
    if shape == "mirror image":
        target = rows * torch.tensor([1, 1, -1])
        arms, aim = (x - x.mean(1, keepdim=True) for x in (rows, target))
        s = torch.linalg.svdvals(arms.mT @ aim)
        best = s[0, 0] + s[0, 1] - s[0, 2]
        found = layout.superposed(rows, target)
        assert torch.isclose(((found - found.mean(1, keepdim=True)) * aim).sum(), best)
    else:
        assert (layout.superposed(rows, target) - target).abs().max() < 1e-12


def test_small_rotations_are_exact() -> None:
    vectors = torch.tensor([[0.0, 0, 0], [1e-30, 0, 0], [1e-9, 2e-9, 0], [3.0, 1, -2]]).double()
    found = matrices(quaternions(vectors))
    expected = torch.linalg.matrix_exp(
        torch.stack(
            [torch.linalg.cross(vectors, e.expand(4, 3)) for e in torch.eye(3).double()], -1
        )
    )
    assert (found - expected).abs().max() < 1e-14
