from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.message_passing import message_passing
from mlff_triton.kernels.ops.pair_messages import pair_messages
from mlff_triton.kernels.ops.reference import pair_messages as reference
from mlff_triton.testing import assert_close
from tests.support.operators import assert_matches
from tests.support.pairs import random_pairs


def random_inputs(
    n_atoms: int, channels: int, device: str, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, ...]:
    """Return random tensors and factors, of one pair more than there are, and a graph."""
    generator = torch.Generator().manual_seed(channels)
    *graph, _ = random_pairs(n_atoms, device)
    n_pairs = 2 + int(graph[2].max()) if len(graph[2]) else 2
    shapes = (9, n_atoms, channels), (n_pairs, 3, channels)
    y, factors = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return y.to(device, dtype), factors.to(device, dtype), *graph


@pytest.mark.parametrize(("n_atoms", "channels"), [(0, 8), (1, 8), (63, 8), (5, 160), (7, 33)])
def test_agrees_with_the_reference_to_second_order(n_atoms, channels, device, dtype):
    inputs = random_inputs(n_atoms, channels, device, dtype)
    assert_matches(pair_messages, reference.pair_messages, *inputs)


def test_500_atoms_and_int32_indices(device):
    y, factors, *graph = random_inputs(500, 16, device, torch.float32)
    message = pair_messages(y, factors, *(index.int() for index in graph))
    exact = reference.pair_messages(y.double(), factors.double(), *graph)
    assert_close(message, exact, 0, torch.float32)


def test_equals_messages_with_the_factors_of_edges(device):
    y, factors, row_ptr, senders, pairs = random_inputs(9, 8, device)
    reverse = random_pairs(9, device)[3]
    expected = message_passing(y, factors[pairs], row_ptr, senders, reverse)
    assert_close(pair_messages(y, factors, row_ptr, senders, pairs), expected, 0)


def test_no_edges(device):
    y, factors, *_ = (t.requires_grad_() for t in random_inputs(3, 8, device)[:2])
    none = torch.zeros(0, dtype=torch.int64, device=device)
    message = pair_messages(y, factors, torch.zeros(4, device=device).long(), none, none)
    message.sum().backward()
    assert not message.any()
    assert not y.grad.any()
    assert not factors.grad.any()


def test_edges_of_no_atom_are_left_out(device):
    y, factors, row_ptr, senders, pairs = random_inputs(5, 8, device)
    more = (torch.cat([index, torch.full_like(index[:3], 4)]) for index in (senders, pairs))
    expected = pair_messages(y, factors, row_ptr, senders, pairs)
    assert_close(pair_messages(y, factors, row_ptr, *more), expected, 0)


def test_strided_inputs(device):
    y, factors, *graph = random_inputs(5, 16, device)
    expected = pair_messages(y, factors, *graph)
    assert_close(pair_messages(y.mT.contiguous().mT, factors, *graph), expected, 0)
    assert_close(pair_messages(y, factors.mT.contiguous().mT, *graph), expected, 0)


def test_derivatives_of_the_reference(device):
    y, factors, *graph = random_inputs(4, 2, device)
    leaves = y.requires_grad_(), factors.requires_grad_()
    assert torch.autograd.gradcheck(lambda *t: reference.pair_messages(*t, *graph), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: reference.pair_messages(*t, *graph), leaves)


def test_registered_completely(device):
    y, factors, *graph = random_inputs(3, 4, device)
    inputs = y.requires_grad_(), factors.requires_grad_(), *graph
    torch.library.opcheck(torch.ops.mlff_triton.pair_messages, inputs)
    operator = torch.ops.mlff_triton.pair_messages_backward_factors
    torch.library.opcheck(operator, (y, y.detach(), *graph, len(factors)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.ones(8, 2, 4)}, r"y has the shape \[8, 2, 4\] instead of \[9, N, F\]"),
        ({"y": torch.ones(9, 2, 4).half()}, "use float32 or float64, the same for all"),
        ({"factors": torch.ones(2, 3, 5)}, r"factors has the shape .* instead of \[P, 3, 4\]"),
        ({"row_ptr": torch.tensor([0, 2])}, r"row_ptr has the shape \[2\] instead of \[3\]"),
        ({"pairs": torch.tensor([1])}, r"pairs has the shape \[1\] instead of \[2\]"),
        ({"senders": torch.tensor([1.0, 0.0])}, "use int64 or int32"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    inputs = {
        "y": torch.ones(9, 2, 4),
        "factors": torch.ones(2, 3, 4),
        "row_ptr": torch.tensor([0, 1, 2]),
        "senders": torch.tensor([1, 0]),
        "pairs": torch.tensor([1, 1]),
    }
    inputs = {name: t.to(device) for name, t in (inputs | change).items()}
    with pytest.raises(InputError, match=message):
        pair_messages(**inputs)
