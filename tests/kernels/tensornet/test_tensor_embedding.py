from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.tensornet import tensor_embedding as kernels
from mlff_triton.kernels.tensornet.launch_sizes import MessageBlocks
from mlff_triton.kernels.tensornet.reference import tensor_embedding as reference
from mlff_triton.kernels.types.edges import Edges, Knots
from mlff_triton.model.irreps import irrep_norms
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import assert_close, random_cluster
from tests.support.random_inputs import (
    KNOTS,
    LARGE,
    assert_matches,
    assert_repeats,
    at_origins,
    moved,
    numbers,
    random_edges,
)

SPECIES = 3
CASES = [
    # atoms, channels, layout, gradients of distances in later layers
    (1, 16, "csr", False),
    (5, 16, "rows", True),
    (5, 128, "csr", False),
    (37, 32, "rows", True),
    pytest.param(3000, 128, "rows", True, marks=pytest.mark.gpu),
]
BLOCKS = [
    # atoms, lanes, channels, unroll, warps
    MessageBlocks(1, 8, 16, 1, 4),
    MessageBlocks(2, 2, 32, 1, 4),
    MessageBlocks(8, 1, 16, 1, 4),
]


def elements(n_atoms: int, channels: int) -> tuple[Tensor, ...]:
    """Return species, both tables of the elements, and the radial table."""
    species = torch.randint(SPECIES, (n_atoms,)).int()
    return species, *numbers(2, SPECIES, channels), numbers(KNOTS + 1, 3, 3, channels)


def forward_inputs(n_atoms: int, channels: int, layout: str) -> tuple[object, ...]:
    return *elements(n_atoms, channels), numbers(channels), random_edges(n_atoms, layout)


def backward_inputs(
    n_atoms: int, channels: int, layout: str, has_slope: bool
) -> tuple[object, ...]:
    edges = random_edges(n_atoms, layout)
    slope = numbers(len(edges.senders)) if has_slope else None
    return numbers(9, n_atoms, channels), *elements(n_atoms, channels), edges, slope


def gradients(module):
    def tensor_embedding_backward(*inputs):
        return at_origins(module.tensor_embedding_backward(*inputs), inputs[-2])

    return tensor_embedding_backward


def check(operator, n_atoms, channels, layout, has_slope, device, dtype):
    inputs = forward_inputs(n_atoms, channels, layout)
    assert_matches(operator.tensor_embedding, reference.tensor_embedding, inputs, device, dtype, 0)
    inputs = backward_inputs(n_atoms, channels, layout, has_slope)
    assert_matches(gradients(operator), gradients(reference), inputs, device, dtype, 1)


@pytest.mark.parametrize(("n_atoms", "channels", "layout", "has_slope"), CASES)
def test_agrees_with_the_reference(n_atoms, channels, layout, has_slope, operator, device, dtype):
    check(operator, n_atoms, channels, layout, has_slope, device, dtype)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_agrees_however_it_is_launched(blocks, device, monkeypatch):
    for name in ("embedding_blocks", "embedding_backward_blocks"):
        monkeypatch.setattr(kernels, name, lambda _: blocks)
    check(kernels, 11, 32, "rows", True, device, torch.float32)


def test_gives_the_same_bits_again(operator, device):
    n_atoms = LARGE[device == "cuda"]
    inputs = forward_inputs(n_atoms, 32, "rows")
    assert_repeats(operator.tensor_embedding, inputs, device, torch.float32)
    inputs = backward_inputs(n_atoms, 32, "rows", True)
    assert_repeats(gradients(operator), inputs, device, torch.float32)


def test_isolated_atoms_are_isotropic(operator, device):
    species, receiver, sender, _, own, _ = inputs = forward_inputs(5, 16, "rows")
    x, norm = operator.tensor_embedding(*moved(inputs, device, torch.float64))
    expected = (receiver + sender)[species[-1]] * own
    assert_close(x[0, -1], expected, 0)
    assert not x[1:, -1].any()
    assert_close(norm[-1], 3 * expected**2, 0)


def test_reference_has_the_right_gradients():
    positions = torch.tensor(random_cluster(9).positions)
    graph = neighbor_list(positions.numpy(), 3.0)
    vectors = graph.vectors(positions, None, None).requires_grad_()
    knots = Knots(torch.linspace(0, 3, KNOTS + 1).double(), torch.arange(KNOTS).int())
    edges = Edges.of_graph(graph.row_ptr, graph.senders, graph.reverse, vectors, knots)
    pairs = elements(9, 16)
    x, norm = reference.tensor_embedding(*pairs, numbers(16), edges)
    grad, slope = numbers(*x.shape), numbers(len(vectors))
    loss = (x * grad).sum() + (edges.distance * slope).sum()
    expected = torch.autograd.grad(loss, vectors)[0]
    fixed = type(edges)(*(t.detach() for t in edges))
    found = reference.tensor_embedding_backward(grad, *pairs, fixed, slope)
    assert_close(found.T, expected, 1)
    assert_close(norm, irrep_norms(x).sum(0), 0)


@pytest.mark.parametrize("n_receivers", [3, 6])
def test_first_atoms_only(n_receivers, operator, device, dtype):
    *others, edges = forward_inputs(11, 32, "rows")
    few = *others, edges.of_first(n_receivers)
    assert_matches(operator.tensor_embedding, reference.tensor_embedding, few, device, dtype, 0)
    x, _ = reference.tensor_embedding(*few)
    assert_close(x, reference.tensor_embedding(*others, edges)[0][:, :n_receivers], 0)

    grad, *others, edges, slope = backward_inputs(11, 32, "rows", True)
    few = grad[:, :n_receivers].contiguous(), *others, edges.of_first(n_receivers), slope
    assert_matches(gradients(operator), gradients(reference), few, device, dtype, 1)
    found = operator.tensor_embedding_backward(*moved(few, device, dtype)).cpu()
    slots, receivers = edges.live()
    is_far = receivers >= n_receivers
    assert is_far.any()
    assert not found[:, edges.origin[slots[is_far]].long()].any()
    all_edges = at_origins(reference.tensor_embedding_backward(grad, *others, edges, slope), edges)
    assert_close(at_origins(found, edges)[:, ~is_far], all_edges[:, ~is_far], 1, dtype)
