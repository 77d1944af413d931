from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mlff_triton._common.cuda_graphs import GraphPool, record
from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.electrostatics.parameters import pme_parameters
from mlff_triton.kernels.electrostatics.pme_energy import pme_energy
from mlff_triton.kernels.electrostatics.reference import pme_energy as reference
from mlff_triton.kernels.electrostatics.reference.ewald_sum import ewald_sum
from mlff_triton.kernels.electrostatics.types import PMEParameters
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_close, assert_within, water_box
from tests.kernels.electrostatics.cases import ANY_ORDER, MESH, Charged, all_gradients, charged

both = pytest.mark.parametrize("operator", [pme_energy, reference.pme_energy], ids=["ours", "twin"])


def slab(*structures, axis=2, net=0.0) -> Charged:
    """Return systems in cells with a gap along an axis, in which no atom was wrapped."""
    case = charged(*structures, net=net)
    cell = case.cell.clone()
    fractions = (case.positions[:, None] @ torch.linalg.inv(cell)[case.batch])[:, 0] % 1.0
    positions = (fractions[:, None] @ cell[case.batch])[:, 0]
    cell[:, axis] *= 4.0
    # Pairs across faces of the slab are gone; those within a cell are in the same image.
    graph = case.graph
    shifts = (positions - case.positions)[:, None] @ torch.linalg.inv(case.cell)[case.batch]
    moved = shifts[:, 0].round().long()
    steps = graph.shifts + moved[graph.receivers] - moved[graph.senders]
    graph = replace(graph, shifts=steps).select(steps[:, axis] == 0)
    return replace(case, positions=positions, cell=cell, graph=graph)


@pytest.mark.parametrize("axis", [None, 0, 2])
def test_agrees_with_the_twin(axis, device, dtype):
    structures = (30, "cubic"), (21, "triclinic")
    case = charged(*structures, net=1.0) if axis is None else slab(*structures, axis=axis, net=1.0)
    case = case.to(device)
    parameters = replace(MESH, slab=axis, mesh=(16, 20, 24))
    options = *case.lists, parameters
    found, gradients = all_gradients(
        lambda *a: pme_energy(*a, check=False), case.charges.to(dtype), *case.atoms[1:], *options
    )
    exact, truth = all_gradients(
        lambda *a: reference.pme_energy(*a, check=False),
        case.charges.to(dtype).double(),
        *case.atoms[1:],
        *options,
    )
    scale = float((case.charges * exact.potential.detach()).abs().sum())
    assert_close(found.energy, exact.energy, 0, dtype, floor=scale)
    assert_close(found.potential, exact.potential, 0, dtype)
    for gradient, expected in zip(gradients, truth, strict=True):
        assert_close(gradient, expected, 1, dtype)


@pytest.mark.parametrize("kind", ["cubic", "triclinic", "small"])
@pytest.mark.parametrize("net", [0.0, 2.0])
@both
def test_agrees_with_the_ewald_sum(operator, kind, net, device):
    """A fine mesh and a short width leave errors far below the forces."""
    case = charged((20, kind), net=net).to(device)
    longest = 4 * int(case.cell.norm(dim=2).max() / 0.15 / 4)
    parameters = PMEParameters(1.1, 5.0, (min(longest, 64),) * 3, 6)
    found, gradients = all_gradients(operator, *case.atoms, *case.lists, parameters)
    exact, truth = all_gradients(ewald_sum, *case.atoms)
    scale = float((case.charges * exact.potential.detach()).abs().sum())
    assert_within(found.energy, exact.energy, 1e-5, floor=scale)
    assert_within(found.potential, exact.potential, 1e-5)
    for gradient, expected in zip(gradients, truth, strict=True):
        assert_within(gradient, expected, 2e-4)


@pytest.mark.parametrize("order", [5, 6])
@both
def test_float32_is_as_exact_as_requested(operator, order, device):
    """Rounding adds less to the error of forces in water than parameters leave."""
    atoms = water_box(27)
    charges = torch.tensor([-0.834, 0.417, 0.417], device=device).repeat(27)
    positions = torch.tensor(atoms.positions, device=device)
    cell = torch.tensor(atoms.cell.array, device=device)[None]
    graph = neighbor_list(atoms.positions, 8.0, atoms.cell.array, True).to(device)
    lists = graph.row_ptr, graph.senders, graph.shifts
    parameters = pme_parameters(cell, 8.0, 1e-5, order=order)
    _, (_, found, _) = all_gradients(operator, charges, positions, cell, None, *lists, parameters)
    _, (_, truth, _) = all_gradients(ewald_sum, charges, positions, cell)
    assert (found - truth).norm() < 1e-5 * truth.norm()


def test_slabs_agree_with_the_ewald_sum(device):
    case = slab((20, "cubic"), axis=1).to(device)
    parameters = PMEParameters(1.1, 5.0, (40, 128, 40), 6, slab=1)
    found, gradients = all_gradients(pme_energy, *case.atoms, *case.lists, parameters)
    exact, truth = all_gradients(lambda *a: ewald_sum(*a, slab=1), *case.atoms)
    assert_within(found.energy, exact.energy, 1e-5)
    for gradient, expected in zip(gradients, truth, strict=True):
        assert_within(gradient, expected, 2e-4)


@both
def test_derivatives(operator, device):
    case = slab((4, "cubic"), net=0.5).to(device)
    leaves = [t.requires_grad_() for t in case.atoms[:3]]
    parameters = PMEParameters(0.6, 4.0, (8, 8, 12), 5, slab=2)

    def result(*leaves):
        return tuple(operator(*leaves, case.batch, *case.lists, parameters, check=False))

    assert torch.autograd.gradcheck(result, leaves, atol=1e-6, nondet_tol=ANY_ORDER)
    assert torch.autograd.gradgradcheck(result, leaves, atol=1e-5, nondet_tol=ANY_ORDER)


@both
def test_charges_that_depend_on_positions(operator, device):
    """Forces through charges are the derivative of the energy, as a model of charges needs it."""
    case = charged((6, "cubic")).to(device)
    parameters = replace(MESH, mesh=(8, 8, 8))
    weight = torch.tensor(0.3, dtype=torch.float64, device=device, requires_grad=True)
    positions = case.positions.requires_grad_()

    def forces(weight, positions):
        x = torch.sin(weight * positions).sum(1)
        charges = x - x.mean()
        found = operator(charges, positions, case.cell, None, *case.lists, parameters)
        return torch.autograd.grad(found.energy.sum(), positions, create_graph=True)[0]

    def energy(positions):
        x = torch.sin(weight * positions).sum(1)
        return operator(x - x.mean(), positions, case.cell, None, *case.lists, parameters).energy

    assert torch.autograd.gradcheck(energy, positions, atol=1e-6, nondet_tol=ANY_ORDER)
    inputs = weight, positions
    assert torch.autograd.gradcheck(forces, inputs, atol=1e-5, nondet_tol=ANY_ORDER)


@both
def test_virial_is_that_of_strains(operator, device):
    case = charged((9, "triclinic"), net=1.0).to(device)
    strain = torch.zeros(3, 3, dtype=torch.float64, device=device, requires_grad=True)

    def energy(strain):
        deformation = torch.eye(3, device=device) + strain
        atoms = case.charges, case.positions @ deformation, case.cell @ deformation, None
        return operator(*atoms, *case.lists, MESH).energy

    assert torch.autograd.gradcheck(energy, strain, atol=1e-6)


def test_results_have_the_same_bits(device, dtype):
    case = charged((60, "triclinic"), (30, "small")).to(device, dtype)
    first, *others = (all_gradients(pme_energy, *case.atoms, *case.lists, MESH) for _ in range(3))
    for other in others:
        assert all(map(torch.equal, [*first[0], *first[1]], [*other[0], *other[1]]))


@pytest.mark.gpu
def test_captured_in_a_graph(dtype):
    """A replay has the bits of a call, also of atoms that have moved meanwhile."""
    case = charged((60, "triclinic"), (30, "small")).to("cuda", dtype)

    def call():
        options = *case.lists, MESH
        return all_gradients(lambda *a: pme_energy(*a, check=False), *case.atoms, *options)

    graph, captured = record(call, GraphPool())
    for _ in range(3):
        case.positions.add_(0.05 * torch.rand_like(case.positions))
        graph.replay()
        expected = call()
        assert all(map(torch.equal, [*captured[0], *captured[1]], [*expected[0], *expected[1]]))


def second_derivatives(operator, case):
    """Return the gradients of squared forces and potentials, as training on forces needs them."""
    leaves = [t.detach().clone().requires_grad_() for t in case.atoms[:3]]
    found = operator(*leaves, case.batch, *case.lists, replace(MESH, slab=2), check=False)
    first = torch.autograd.grad(found.energy.sum(), leaves, create_graph=True)
    loss = sum((each.double() ** 2).sum() for each in (*first, found.potential))
    return torch.autograd.grad(loss, leaves)


@pytest.mark.gpu
def test_second_derivatives_are_captured_in_a_graph():
    case = charged((20, "cubic"), (10, "small")).to("cuda")
    expected = second_derivatives(pme_energy, case)
    graph, captured = record(lambda: second_derivatives(pme_energy, case), GraphPool())
    graph.replay()
    for found, exact in zip(captured, expected, strict=True):
        assert_close(found, exact, 2)


class Waiting(TorchDispatchMode):
    """Fail in operations that wait for a GPU, or copy from the host, which graphs cannot hold."""

    FORBIDDEN = (
        "lift_fresh",
        "_local_scalar_dense",
        "nonzero",
        "linalg_inv",
        "linalg_lu",
        "linalg_det",
    )

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        assert not any(part in name.split(".")[0] for part in self.FORBIDDEN), name
        return function(*args, **(kwargs or {}))


def test_the_twin_can_be_captured():
    case = charged((6, "cubic"), (3, "small"))
    with Waiting():
        second_derivatives(reference.pme_energy, case)
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Waiting():
        float(case.charges[0])


@both
def test_one_system_needs_no_batch(operator, device):
    case = charged((9, "cubic")).to(device)
    expected = operator(*case.atoms, *case.lists, MESH)
    found = operator(*case.atoms[:3], None, *case.lists, MESH)
    if operator is pme_energy:
        assert all(map(torch.equal, found, expected))
    for value, exact in zip(found, expected, strict=True):  # the twin adds in any order on a GPU
        assert_close(value, exact, 0)
    with pytest.raises(InputError, match="there are 2 cells, and no batch"):
        operator(*case.atoms[:2], case.cell.repeat(2, 1, 1), None, *case.lists, MESH)


def with_value(case, name, value):
    """Return a case in which one value of a tensor is another one."""
    changed = getattr(case, name).clone()
    changed.view(-1)[-1] = value
    return replace(case, **{name: changed})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: with_value(c, "charges", torch.nan), "the charge of atom 8 is NaN or infinite"),
        (lambda c: with_value(c, "positions", torch.inf), "the position of atom 8 is NaN or inf"),
        (lambda c: with_value(c, "cell", torch.nan), "the cell holds NaN or infinity"),
        (lambda c: replace(c, cell=0 * c.cell), "has no volume: particle-mesh Ewald needs three"),
        (lambda c: replace(c, cell=20 * c.cell), "too coarse for a splitting of 0.8/Å"),
        (lambda c: replace(c, batch=c.batch + 1), "batch must ascend, from 0 to at most 0"),
        (lambda c: with_value(c, "batch", -1), "batch must ascend"),
    ],
)
@both
def test_refuses_values_without_a_meaning(operator, change, message, device):
    case = change(charged((9, "cubic")).to(device))
    with pytest.raises(InputError, match=message) as error:
        operator(*case.atoms, *case.lists, MESH)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("structures", [[(40, "cubic")], [(40, "triclinic"), (1, "small")]])
@both
def test_refuses_lists_that_lack_edges(operator, structures, device):
    """Lists for a smaller cutoff, with each pair once, or of another system."""
    case = charged(*structures, cutoff=6.0).to(device)
    parameters = replace(MESH, cutoff=6.0)
    operator(*case.atoms, *case.lists, parameters)
    shorter = charged(*structures, cutoff=5.0).to(device)
    row_ptr, senders, shifts = case.lists
    half = len(senders) // 2
    for lists in (shorter.lists, (row_ptr // 2, senders[:half], shifts[:half])):
        with pytest.raises(InputError, match=r"edges, but about .* are within the cutoff of 6 Å"):
            operator(*case.atoms, *lists, parameters)


def one_way(row_ptr, senders, shifts):
    """Return each pair once, as the edge to its first atom."""
    receivers = torch.arange(len(row_ptr) - 1, device=senders.device).repeat_interleave(
        row_ptr.diff()
    )
    is_kept = receivers < senders
    counts = torch.bincount(receivers[is_kept], minlength=len(row_ptr) - 1)
    return torch.cat([row_ptr[:1], counts.cumsum(0)]), senders[is_kept], shifts[is_kept]


def with_last(tensor, value):
    """Return a tensor with another last value."""
    return torch.cat([tensor[:-1], tensor.new_tensor([value])])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_way, "lacks the reverse of many edges: give each pair in both directions"),
        (lambda r, s, x: (r, with_last(s, -1), x), "senders must be from 0 to 8"),
        (lambda r, s, x: (r, with_last(s, 9), x), "senders must be from 0 to 8"),
        (lambda r, s, x: (r - 1, s, x), "row_ptr must ascend from 0"),
        (lambda r, s, x: (r.flip(0), s, x), "row_ptr must ascend from 0"),
        (lambda r, s, x: (r, s[:-1], x[:-1]), "row_ptr must ascend from 0"),
        (lambda r, s, x: (r.double(), s, x), "row_ptr is torch.float64: use int64"),
        (lambda r, s, x: (r[:-1], s, x), "row_ptr has the shape"),
    ],
)
@both
def test_refuses_lists_of_wrong_edges(operator, change, message, device):
    case = charged((9, "cubic")).to(device)
    with pytest.raises(InputError, match=message) as error:
        operator(*case.atoms, *change(*case.lists), MESH)
    assert "\n" not in str(error.value)


@both
def test_refuses_slabs_without_a_gap(operator, device):
    case = charged((20, "cubic")).to(device)
    parameters = replace(MESH, slab=2)
    with pytest.raises(InputError, match=r"the slab of system 0 is .* Å thick in a cell of .* Å"):
        operator(*case.atoms, *case.lists, parameters)
    case = slab((20, "cubic")).to(device)
    operator(*case.atoms, *case.lists, parameters)


@both
def test_warns_of_charged_systems_if_asked(operator, device):
    case = charged((9, "cubic"), (5, "cubic"), net=3.0).to(device)
    with pytest.warns(
        UserWarning, match=r"system 0 has the charge \+3 e \(2 such systems\)"
    ) as seen:
        operator(*case.atoms, *case.lists, MESH, warn_charged=True)
    assert [w.filename for w in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        operator(*case.atoms, *case.lists, MESH)
        neutral = charged((9, "cubic")).to(device)
        operator(*neutral.atoms, *neutral.lists, MESH, warn_charged=True)


def test_needs_a_gpu(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    case = charged((3, "cubic"))
    with pytest.raises(BackendError, match="move the tensors to 'cuda'"):
        pme_energy(*case.atoms, *case.lists, MESH)
