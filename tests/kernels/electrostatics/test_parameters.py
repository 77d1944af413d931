from __future__ import annotations

import numpy as np
import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.parameters import mesh_size, pme_parameters
from mlff_triton.kernels.electrostatics.reference.ewald_sum import ewald_sum
from mlff_triton.kernels.electrostatics.reference.pme_energy import pme_energy
from mlff_triton.kernels.electrostatics.types import PMEParameters
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import random_crystal

BOX = 12 * torch.eye(3)[None]


def forces(function, charges, positions, *others):
    leaf = positions.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(charges, leaf, *others).energy.sum(), leaf)
    return gradient


@pytest.mark.parametrize(
    ("kind", "n_atoms", "spacing"), [("cubic", 60, 1.2), ("triclinic", 110, 1.5)]
)
@pytest.mark.parametrize("cutoff", [5.0, 9.0])
def test_errors_are_as_requested(kind, n_atoms, spacing, cutoff):
    """Errors of forces are below the request, and more than a twentieth of it."""
    atoms = random_crystal(n_atoms, kind, seed=3, min_distance=spacing)
    positions, cell = torch.tensor(atoms.positions), torch.tensor(np.asarray(atoms.cell))[None]
    generator = torch.Generator().manual_seed(0)
    charges = torch.randn(n_atoms, generator=generator, dtype=torch.float64)
    truth = forces(ewald_sum, charges, positions, cell)
    graph = neighbor_list(atoms.positions, cutoff, np.asarray(atoms.cell), True)
    lists = graph.row_ptr, graph.senders, graph.shifts
    for error in (1e-3, 1e-4, 1e-5):
        for order in (4, 5, 6):
            parameters = pme_parameters(cell, cutoff, error, order=order)
            found = forces(pme_energy, charges, positions, cell, None, *lists, parameters)
            relative = float((found - truth).norm() / truth.norm())
            assert error / 20 < relative < error, (error, order)


def test_higher_orders_take_coarser_meshes():
    sizes = [pme_parameters(4 * BOX, 9.0, 1e-5, order=p).mesh[0] for p in (4, 5, 6)]
    assert sizes == sorted(sizes, reverse=True)


def test_systems_share_a_mesh():
    cells = torch.cat([BOX, 2 * BOX])
    assert pme_parameters(cells, 5.0) == pme_parameters(cells[1:], 5.0)


@pytest.mark.parametrize(
    ("least", "size"), [(1, 8), (8.1, 12), (43, 48), (44, 48), (85, 96), (128.5, 140)]
)
def test_mesh_sizes_are_fast_to_transform(least, size):
    assert mesh_size(least) == size


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": torch.eye(3)}, r"instead of \[B, 3, 3\]"),
        ({"cell": torch.zeros(1, 3, 3)}, "system 0 has no volume.*three lattice vectors"),
        ({"cell": torch.cat([BOX, BOX * torch.tensor([1.0, 1.0, 0.0])])}, "system 1 has no volume"),
        ({"cell": BOX * torch.nan}, "NaN or infinity"),
        ({"cutoff": 0.0}, "cutoff must be positive"),
        ({"cutoff": torch.inf}, "cutoff must be positive and finite"),
        ({"error": 0.1}, "out of range: use 1e-9 to 1e-2"),
        ({"order": 3}, "use 4, 5 or 6"),
        ({"slab": 3}, "slab=3 is unknown"),
    ],
)
def test_refuses_what_has_no_parameters(change, message):
    with pytest.raises(InputError, match=message) as error:
        pme_parameters(**({"cell": BOX, "cutoff": 5.0} | change))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"splitting": 0.0}, "splitting must be positive"),
        ({"cutoff": torch.nan}, "cutoff must be positive"),
        ({"mesh": (8, 8, 4)}, "multiples of 4, at least 8"),
        ({"mesh": (8, 8, 10)}, "multiples of 4, at least 8"),
        ({"mesh": (8, 8)}, "multiples of 4, at least 8"),
        ({"order": 7}, "order=7 is not supported"),
    ],
)
def test_refuses_parameters_without_kernels(change, message):
    with pytest.raises(InputError, match=message):
        PMEParameters(**({"splitting": 0.4, "cutoff": 5.0, "mesh": (8, 8, 8)} | change))
