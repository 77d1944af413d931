from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.electrostatics.ewald_pairs import ewald_pairs
from mlff_triton.kernels.electrostatics.reference import ewald_pairs as reference
from mlff_triton.testing import assert_close
from tests.kernels.electrostatics.cases import ANY_ORDER, all_gradients, charged

SPLITTING = 0.6


def assert_matches(case, dtype, splitting=SPLITTING, cutoff=5.0):
    """Assert that energies, potentials and gradients agree with the reference in float64."""
    options = *case.lists, splitting, cutoff
    charges = case.charges.to(dtype)
    found, gradients = all_gradients(ewald_pairs, charges, *case.atoms[1:], *options)
    exact, truth = all_gradients(reference.ewald_pairs, charges.double(), *case.atoms[1:], *options)
    scale = (case.charges.double() * exact.potential.detach()).abs().sum()
    assert found.energy.dtype is torch.float64
    assert found.potential.dtype is dtype
    assert_close(found.energy, exact.energy, 0, dtype, floor=float(scale))
    assert_close(found.potential, exact.potential, 0, dtype)
    for gradient, expected in zip(gradients, truth, strict=True):
        assert_close(gradient, expected, 1, dtype, floor=1.0)


@pytest.mark.parametrize(
    "structures",
    [[(1, "small")], [(63, "triclinic")], [(20, "cubic"), (1, "cubic"), (33, "small")]],
)
def test_agrees_with_the_reference(structures, device, dtype):
    assert_matches(charged(*structures).to(device), dtype)


def test_leaves_out_what_is_beyond_the_cutoff(device, dtype):
    case = charged((40, "cubic"), cutoff=6.0).to(device)
    assert_matches(case, dtype, cutoff=4.0)


@pytest.mark.parametrize("splitting", [0.05, 2.0])
def test_any_splitting(splitting, device, dtype):
    assert_matches(charged((20, "cubic")).to(device), dtype, splitting)


def test_no_pairs_and_no_atoms(device, dtype):
    case = charged((3, "cubic"), cutoff=0.1).to(device, dtype)
    found = ewald_pairs(*case.atoms, *case.lists, SPLITTING, 0.1)
    assert not found.energy.any()
    assert not found.potential.any()
    charges, positions, _, batch = (t[:0] for t in case.atoms)
    lists = case.graph.row_ptr[:1], *case.lists[1:]
    found = ewald_pairs(charges, positions, case.cell, batch, *lists, SPLITTING, 0.1)
    assert found.energy.tolist() == [0.0]


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("shift", [torch.int8, torch.int32])
def test_integers_of_any_size(integer, shift, device):
    case = charged((30, "small"), (5, "cubic")).to(device)
    wide = ewald_pairs(*case.atoms, *case.lists, SPLITTING, 5.0)
    atoms = *case.atoms[:3], case.batch.to(integer)
    lists = (
        case.graph.row_ptr.to(integer),
        case.graph.senders.to(integer),
        case.graph.shifts.to(shift),
    )
    narrow = ewald_pairs(*atoms, *lists, SPLITTING, 5.0)
    assert all(map(torch.equal, wide, narrow))


def test_float32_positions(device):
    case = charged((30, "triclinic")).to(device, torch.float32)
    positions, cell = case.positions.float(), case.cell.float()
    options = *case.lists, SPLITTING, 5.0
    found, gradients = all_gradients(ewald_pairs, case.charges, positions, cell, None, *options)
    exact, truth = all_gradients(
        reference.ewald_pairs,
        case.charges.double(),
        positions.double(),
        cell.double(),
        None,
        *options,
    )
    assert_close(found.potential, exact.potential, 0, torch.float32)
    for gradient, expected in zip(gradients, truth, strict=True):
        assert gradient.dtype is torch.float32
        assert_close(gradient, expected, 1, torch.float32)


def test_second_derivatives(device):
    case = charged((4, "small"), (2, "cubic"), cutoff=3.0).to(device)
    leaves = [t.requires_grad_() for t in case.atoms[:3]]

    def result(*leaves):
        return tuple(ewald_pairs(*leaves, case.batch, *case.lists, SPLITTING, 3.0))

    assert torch.autograd.gradcheck(result, leaves, atol=1e-6)
    assert torch.autograd.gradgradcheck(result, leaves, atol=1e-6, nondet_tol=ANY_ORDER)


def test_registered_completely(device):
    case = charged((4, "cubic")).to(device)
    leaves = [t.requires_grad_() for t in case.atoms[:3]]
    arguments = *leaves, case.batch, *case.lists, SPLITTING, 5.0
    torch.library.opcheck(torch.ops.mlff_triton.ewald_pairs, arguments)


def test_not_a_number_stays(device, dtype):
    case = charged((20, "cubic")).to(device, dtype)
    for k in range(2):
        atoms = [t.clone() for t in case.atoms]
        atoms[k].view(-1)[4] = torch.nan
        for operator in (ewald_pairs, reference.ewald_pairs):
            assert operator(*atoms, *case.lists, SPLITTING, 5.0).energy.isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"charges": torch.ones(4).half()}, "charges is torch.float16: use float32 or float64"),
        ({"positions": torch.ones(3, 3)}, r"positions has the shape \[3, 3\]"),
        ({"cell": torch.eye(3)}, r"cell has the shape \[3, 3\]"),
        ({"cell": torch.ones(2, 3, 3)}, "there are 2 cells, and no batch"),
        ({"batch": torch.zeros(4)}, "batch is torch.float32: use int64 or int32"),
        ({"row_ptr": torch.zeros(4).long()}, r"row_ptr has the shape \[4\] instead of \[5\]"),
        ({"senders": torch.zeros(2).half()}, "senders is torch.float16"),
        ({"shifts": torch.zeros(2, 2).long()}, "shifts has the shape"),
        ({"shifts": torch.zeros(2, 3)}, "use int8, int32 or int64"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    arguments = {
        "charges": torch.ones(4),
        "positions": torch.ones(4, 3),
        "cell": torch.eye(3)[None],
        "batch": None,
        "row_ptr": torch.tensor([0, 1, 2, 2, 2]),
        "senders": torch.tensor([1, 0]),
        "shifts": torch.zeros(2, 3).long(),
    } | change
    moved = {k: None if v is None else v.to(device) for k, v in arguments.items()}
    with pytest.raises(InputError, match=message):
        ewald_pairs(**moved, splitting=0.5, cutoff=5.0)
