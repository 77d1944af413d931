from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.edge_tensors import edge_tensors
from mlff_triton.kernels.ops.pair_embedding import pair_embedding
from mlff_triton.kernels.ops.reference import pair_embedding as reference
from mlff_triton.testing import assert_close
from tests.support.operators import assert_matches
from tests.support.pairs import random_pairs


def random_inputs(
    n_atoms: int, channels: int, device: str, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, ...]:
    """Return random inputs, with factors of one pair more than there are."""
    generator = torch.Generator().manual_seed(n_atoms)
    graph = random_pairs(n_atoms, device)
    _, senders, pairs, _ = graph
    n_pairs = 2 + int(pairs.max()) if len(pairs) else 2
    atoms = (n_atoms, channels)
    shapes = (len(senders), 3), (n_pairs, 3, channels), atoms, atoms
    floats = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return *(t.to(device, dtype) for t in floats), *graph


@pytest.mark.parametrize(("n_atoms", "channels"), [(0, 8), (1, 8), (63, 8), (5, 33), (5, 128)])
def test_agrees_with_the_reference_to_second_order(n_atoms, channels, device, dtype):
    inputs = random_inputs(n_atoms, channels, device, dtype)
    assert_matches(pair_embedding, reference.pair_embedding, *inputs)


def test_500_atoms_and_int32_indices(device):
    *floats, row_ptr, senders, pairs, reverse = random_inputs(500, 16, device, torch.float32)
    graph = row_ptr, senders, pairs, reverse
    tensors = pair_embedding(*floats, *(index.int() for index in graph))
    exact = reference.pair_embedding(*(t.double() for t in floats), *graph)
    assert_close(tensors, exact, 0, torch.float32)
    assert not tensors[:, -1].any(), "the last atom has no edges"


def test_equals_the_sum_of_tensors_of_edges(device):
    directions, factors, a, b, *graph = random_inputs(9, 8, device)
    row_ptr, senders, pairs, reverse = graph
    atoms = a[senders[reverse]] + b[senders]
    expected = edge_tensors(directions, factors[pairs] * atoms[:, None], row_ptr)
    assert_close(pair_embedding(directions, factors, a, b, *graph), expected, 0)


def test_edges_of_no_atom_are_left_out(device):
    directions, *floats, row_ptr, senders, pairs, reverse = random_inputs(5, 8, device)
    expected = pair_embedding(directions, *floats, row_ptr, senders, pairs, reverse)
    more = torch.cat([directions, torch.full_like(directions[:2], torch.nan)]).requires_grad_()
    graph = [torch.cat([index, index.new_full((2,), 4)]) for index in (senders, pairs, reverse)]
    found = pair_embedding(more, *floats, row_ptr, *graph)
    assert_close(found, expected, 0)
    (gradient,) = torch.autograd.grad(found.sum(), more)
    assert not gradient[-2:].any()


def test_strided_inputs(device):
    *floats, row_ptr, senders, pairs, reverse = random_inputs(5, 8, device)
    graph = row_ptr, senders, pairs, reverse
    strided = (t.mT.contiguous().mT for t in floats)
    assert_close(pair_embedding(*strided, *graph), pair_embedding(*floats, *graph), 0)


def test_derivatives_of_the_reference(device):
    *floats, row_ptr, senders, pairs, reverse = random_inputs(4, 2, device)
    leaves = [leaf.requires_grad_() for leaf in floats]

    def embedding(*inputs: Tensor) -> Tensor:
        return reference.pair_embedding(*inputs, row_ptr, senders, pairs, reverse)

    assert torch.autograd.gradcheck(embedding, leaves)
    assert torch.autograd.gradgradcheck(embedding, leaves)


def test_registered_completely(device):
    *floats, row_ptr, senders, pairs, reverse = random_inputs(3, 4, device)
    inputs = *(t.requires_grad_() for t in floats), row_ptr, senders, pairs, reverse
    torch.library.opcheck(torch.ops.mlff_triton.pair_embedding, inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"directions": torch.ones(2, 4)}, r"directions has the shape \[2, 4\]"),
        ({"factors": torch.ones(2, 2, 4)}, r"factors has the shape \[2, 2, 4\] instead of \[P, 3"),
        ({"at_senders": torch.ones(2, 5)}, r"at_senders has the shape \[2, 5\] instead of \[2, 4"),
        ({"at_receivers": torch.ones(2, 4).double()}, "the same for all"),
        ({"pairs": torch.tensor([1])}, r"pairs has the shape \[1\] instead of \[2\]"),
        ({"row_ptr": torch.tensor([0.0, 1, 2])}, "row_ptr is torch.float32: use int64 or int32"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    inputs = {
        "directions": torch.ones(2, 3),
        "factors": torch.ones(2, 3, 4),
        "at_receivers": torch.ones(2, 4),
        "at_senders": torch.ones(2, 4),
        "row_ptr": torch.tensor([0, 1, 2]),
        "senders": torch.tensor([1, 0]),
        "pairs": torch.tensor([1, 1]),
        "reverse": torch.tensor([1, 0]),
    }
    inputs = {name: t.to(device) for name, t in (inputs | change).items()}
    with pytest.raises(InputError, match=message):
        pair_embedding(**inputs)
