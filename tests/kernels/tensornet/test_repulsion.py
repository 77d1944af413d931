from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.engine.charge_parameters import bonded_nuclei
from mlff_triton.kernels.tensornet.reference import repulsion as reference
from mlff_triton.kernels.types.edges import Edges
from mlff_triton.model.config import TensorNetConfig, ZBLConfig
from mlff_triton.model.zbl import nuclei_of, zbl_energy
from mlff_triton.testing import assert_close
from tests.support.charged import charged_model
from tests.support.random_inputs import LARGE, moved, numbers, random_edges

CHARGES = 0.0, 1.0, 7.5, 79.0
ZBL = ZBLConfig(cutoff=1.6, prefactor=14.4, length_scale=1.1, charges=CHARGES)
CONFIG = TensorNetConfig(elements=(0, 1, 6, 79), zbl=ZBL)
ENDS = torch.tensor([0.1, 0.6, 0.8, 1.0]).double()[:, None] + torch.tensor([0.1, 0.6, 0.8, 1.0])
SIZES = [1, 5, 37, pytest.param(3000, marks=pytest.mark.gpu)]

Inputs = tuple[Tensor, Tensor, Edges]


def inputs(n_atoms: int, layout: str, neighbors: int = 5) -> Inputs:
    """Return the gradients of the network at the edges, species, and edges of 1 to 2 Å."""
    edges = random_edges(n_atoms, layout, neighbors)
    slots, _ = edges.live()
    grad = torch.full_like(edges.direction, torch.nan)
    grad[:, edges.origin[slots].long()] = numbers(3, len(slots))
    return grad, torch.randint(len(CHARGES), (n_atoms,)).int(), edges


def outputs(
    module, given: Inputs, device: str, dtype: torch.dtype, ends: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the energies, and the gradients that the operator has updated."""
    grad, species, edges = moved(given, device, dtype)
    grad = grad.clone()
    (nuclei,) = nuclei_of(CONFIG, torch.device(device))
    if ends is not None:
        nuclei = nuclei._replace(ends=ends.to(device))
    return module.repulsion(grad, species, nuclei, Edges(*edges)), grad


def check(
    operator, given: Inputs, device: str, dtype: torch.dtype, ends: Tensor | None = None
) -> None:
    energies, grad = outputs(operator, given, device, dtype, ends)
    expected_energies, expected_grad = outputs(reference, given, "cpu", torch.float64, ends)
    assert energies.dtype == torch.float64
    assert grad.dtype == dtype
    assert_close(energies, expected_energies, 0)  # distances are the same in both dtypes
    poisoned = given[0].isnan()
    assert torch.equal(grad.isnan().cpu(), poisoned)
    assert_close(grad[~poisoned.to(device)], expected_grad[~poisoned], 1, dtype)


@pytest.mark.parametrize("layout", ["csr", "rows"])
@pytest.mark.parametrize("n_atoms", SIZES)
def test_agrees_with_the_reference(n_atoms, layout, operator, device, dtype):
    check(operator, inputs(n_atoms, layout), device, dtype)


@pytest.mark.parametrize("layout", ["csr", "rows"])
@pytest.mark.parametrize("n_atoms", SIZES)
def test_repulsion_that_ends_at_distances_of_elements(n_atoms, layout, operator, device, dtype):
    check(operator, inputs(n_atoms, layout), device, dtype, ENDS)


def test_more_neighbors_than_lanes(operator, device, dtype):
    given = inputs(80, "csr", neighbors=320)
    edges = given[-1]
    assert (edges.slot_end - edges.slot_begin).max() > 64
    check(operator, given, device, dtype)


def test_gives_the_same_bits_again(operator, device):
    given = inputs(LARGE[device == "cuda"], "csr")
    runs = [outputs(operator, given, device, torch.float32) for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("operator", ["kernels", "loops", "reference"], indirect=True)
def test_only_edges_within_the_cutoff_change(operator, device):
    grad, species, edges = given = inputs(37, "csr")
    _, found = outputs(operator, given, device, torch.float64)
    changed = (found.cpu() != grad).any(0)
    charges = torch.tensor(CHARGES)[species.long()]
    slots, receivers = edges.live()
    charged = charges[receivers] * charges[edges.senders.long()] > 0
    near = edges.distance < ZBL.cutoff
    assert (near & charged).any()
    assert (~near & charged).any()
    assert torch.equal(changed[slots], near & charged)


@pytest.mark.parametrize("cutoff", [1.2, 1.6, 3.2])
def test_reference_is_what_the_exact_module_has(cutoff):
    """Compare the energies, and their derivatives with respect to the edge vectors."""
    _, species, edges = inputs(37, "csr")
    zbl = ZBLConfig(cutoff, 14.4, 1.1, CHARGES)
    vectors = (edges.direction * edges.distance).requires_grad_()
    distance = torch.linalg.vector_norm(vectors, dim=0)
    _, receivers = edges.live()
    charges = torch.tensor(CHARGES).double()[species.long()]
    ends = charges[receivers], charges[edges.senders.long()]
    expected = zbl_energy(zbl, distance, *ends)
    assert expected.max() > 1

    grad = torch.zeros_like(edges.direction)
    (nuclei,) = nuclei_of(TensorNetConfig(CONFIG.elements, zbl=zbl), torch.device("cpu"))
    energies = reference.repulsion(grad, species, nuclei, edges)
    assert_close(energies, torch.zeros(37).double().index_add(0, receivers, expected), 0)
    assert_close(grad, torch.autograd.grad(expected.sum(), vectors)[0], 1)


def test_ends_are_those_of_the_exact_tensornet2():
    """Compare the energies, and their derivatives with respect to the edge vectors."""
    _, species, edges = inputs(37, "csr")
    model = charged_model(repulsion=True, cutoff_upper=1.9)
    vectors = (edges.direction * edges.distance).requires_grad_()
    distance = torch.linalg.vector_norm(vectors, dim=0)
    _, receivers = edges.live()
    ends = species[receivers].long(), species[edges.senders.long()].long()
    near = distance < 1.9
    expected = model.std / 2 * model.repulsion(distance, *ends) * near
    assert expected.max() > 1
    assert 0 < int((expected > 0).sum()) < int(near.sum())

    grad = torch.zeros_like(edges.direction)
    energies = reference.repulsion(grad, species, bonded_nuclei(model), edges)
    assert_close(energies, torch.zeros(37).double().index_add(0, receivers, expected), 0)
    assert_close(grad, torch.autograd.grad(expected.sum(), vectors)[0], 1)


def test_charges_are_atomic_numbers_unless_they_are_given():
    cpu = torch.device("cpu")
    without = TensorNetConfig(CONFIG.elements, zbl=ZBLConfig(3.0, 14.4))
    both = TensorNetConfig(CONFIG.elements, zbl=(ZBLConfig(3.0, 14.4), ZBL))
    assert nuclei_of(without, cpu)[0].charge.tolist() == list(CONFIG.elements)
    assert nuclei_of(CONFIG, cpu)[0].charge.tolist() == list(CHARGES)
    charges = [nuclei.charge.tolist() for nuclei in nuclei_of(both, cpu)]
    assert charges == [list(CONFIG.elements), list(CHARGES)]
    assert nuclei_of(TensorNetConfig(CONFIG.elements), cpu) == []


def test_first_atoms_only(operator, device, dtype):
    grad, species, edges = inputs(11, "rows")
    given = grad, species, edges.of_first(4)
    check(operator, given, device, dtype)
    energies, changed = outputs(operator, given, device, torch.float64)
    expected, all_changed = outputs(reference, (grad, species, edges), "cpu", torch.float64)
    assert_close(energies, expected[:4], 0)
    slots, receivers = edges.live()
    for slot, receiver in zip(slots, receivers, strict=True):
        origin = int(edges.origin[slot])
        target = all_changed if receiver < 4 else grad
        assert_close(changed[:, origin], target[:, origin], 1)
