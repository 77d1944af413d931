from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.ops.message_passing import message_passing
from mlff_triton.kernels.ops.reference import message_passing as reference
from mlff_triton.neighbors.graph import Graph
from mlff_triton.testing import assert_close
from tests.support.operators import assert_matches

LAYOUTS = {  # shapes of y and of the factors
    "parts": ((9, None, "F"), (3, "F")),
    "elements": ((None, 3, 3, "F"), (3, 3, "F")),
    "one for all": ((None, 3, 3, "F"), (1, 1, "F")),
}


def random_graph(n_atoms: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return a graph with about one neighbor per atom; the last atom has none."""
    generator = torch.Generator().manual_seed(n_atoms)
    linked = torch.rand(n_atoms, n_atoms, generator=generator) < 0.5 / max(n_atoms, 1)
    linked[:1, 1:2] = linked[2:3, 1:2] = True
    linked = (linked | linked.T).fill_diagonal_(False)
    linked[-1:] = linked[:, -1:] = False
    receivers, senders = linked.nonzero(as_tuple=True)
    shifts = torch.zeros(len(senders), 3, dtype=torch.int64)
    graph = Graph.from_pairs(receivers, senders, shifts, n_atoms).to(device)
    return graph.row_ptr, graph.senders, graph.reverse


def random_inputs(
    layout: str, n_atoms: int, n_edges: int, channels: int, device: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return random tensors and factors that require gradients."""
    generator = torch.Generator().manual_seed(channels)
    sizes = {None: n_atoms, "F": channels}
    y_shape, factor_shape = ([sizes.get(size, size) for size in s] for s in LAYOUTS[layout])
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64)
        .to(device, dtype)
        .requires_grad_()
        for shape in (y_shape, [n_edges, *factor_shape])
    )


@pytest.mark.parametrize(
    ("layout", "n_atoms", "channels"),
    [
        ("parts", 1, 8),
        ("parts", 63, 8),
        ("parts", 5, 160),
        ("elements", 5, 33),
        ("one for all", 5, 33),
    ],
)
def test_agrees_with_the_reference_to_second_order(layout, n_atoms, channels, device, dtype):
    graph = random_graph(n_atoms, device)
    inputs = random_inputs(layout, n_atoms, len(graph[1]), channels, device, dtype)
    assert_matches(message_passing, reference.message_passing, *inputs, *graph)


def test_500_atoms_and_int32_indices(device):
    graph = random_graph(500, device)
    y, factors = random_inputs("parts", 500, len(graph[1]), 16, device, torch.float32)
    message = message_passing(y, factors, *(index.int() for index in graph))
    exact = reference.message_passing(y.double(), factors.double(), *graph)
    assert_close(message, exact, 0, torch.float32)
    assert not message[:, -1].any(), "the last atom is isolated"


@pytest.mark.parametrize("n_atoms", [0, 1, 5])
def test_no_edges(n_atoms, device):
    graph = random_graph(n_atoms, device)[0] * 0, *(torch.zeros(2, 0, device=device).long())
    y, factors = random_inputs("parts", n_atoms, 0, 8, device, torch.float32)
    message = message_passing(y, factors, *graph)
    message.sum().backward()
    assert message.shape == y.shape
    assert not message.any()
    assert not y.grad.any()
    assert factors.grad.shape == factors.shape


def test_edges_of_no_atom_are_left_out(device):
    row_ptr, senders, reverse = random_graph(5, device)
    n_edges = len(senders)
    y, factors = random_inputs("parts", 5, n_edges + 4, 8, device, torch.float64)
    more = torch.tensor([4, 3, 4, 3], device=device)
    opposite = n_edges + torch.tensor([1, 0, 3, 2], device=device)
    graph = row_ptr, torch.cat([senders, more]), torch.cat([reverse, opposite])
    assert_matches(message_passing, reference.message_passing, y, factors, *graph)
    message = message_passing(y, factors, *graph)
    assert_close(message, message_passing(y, factors[:n_edges], row_ptr, senders, reverse), 0)
    message.square().sum().backward()
    assert factors.grad[:n_edges].any()
    assert not factors.grad[n_edges:].any()


def test_agrees_with_torchmd_net(device):
    pytest.importorskip("torchmdnet", reason="TorchMD-NET is not installed")
    with warnings.catch_warnings():  # Warp warns at its first import
        warnings.simplefilter("ignore")
        from torchmdnet.models.tensornet import tensor_message_passing
    row_ptr, senders, reverse = random_graph(5, device)
    y, factors = random_inputs("elements", 5, len(senders), 8, device, torch.float64)
    edges = torch.stack([senders[reverse], senders])
    expected = tensor_message_passing(edges, factors, y, 5)
    assert_close(message_passing(y, factors, row_ptr, senders, reverse), expected, 0)


def test_strided_inputs(device):
    graph = random_graph(5, device)
    y, factors = random_inputs("parts", 5, len(graph[1]), 16, device, torch.float64)
    expected = message_passing(y, factors, *graph)
    for strided in (y.movedim(1, 0).contiguous().movedim(0, 1), y.mT.contiguous().mT):
        assert_close(message_passing(strided, factors, *graph), expected, 0)
    assert_close(message_passing(y, factors.mT.contiguous().mT, *graph), expected, 0)


def test_reference_derivatives(device):
    graph = random_graph(4, device)
    for layout in LAYOUTS:
        inputs = random_inputs(layout, 4, len(graph[1]), 2, device, torch.float64)
        assert torch.autograd.gradcheck(lambda *t: reference.message_passing(*t, *graph), inputs)
        assert torch.autograd.gradgradcheck(
            lambda *t: reference.message_passing(*t, *graph), inputs
        )


def test_registered_completely(device):
    graph = random_graph(3, device)
    y, factors = random_inputs("parts", 3, len(graph[1]), 4, device, torch.float64)
    torch.library.opcheck(torch.ops.mlff_triton.message_passing, (y, factors, *graph, False))
    operator = torch.ops.mlff_triton.message_passing_backward_factors
    torch.library.opcheck(operator, (y, y.detach(), *graph, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.ones(8, 2, 4)}, r"y has the shape \[8, 2, 4\] instead of \[9, N, F\]"),
        ({"y": torch.ones(9, 2, 4).half()}, "use float32 or float64, the same for all"),
        ({"factors": torch.ones(2, 3, 5)}, r"factors has the shape .* instead of \[E, 3, 4\]"),
        ({"y": torch.ones(2, 3, 3, 4)}, r"factors has the shape .* instead of \[E, 3, 3, 4\]"),
        ({"row_ptr": torch.tensor([0, 2])}, r"row_ptr has the shape \[2\] instead of \[3\]"),
        ({"reverse": torch.tensor([1])}, r"reverse has the shape \[1\] instead of \[2\]"),
        ({"senders": torch.tensor([1.0, 0.0])}, "use int64 or int32"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    inputs = {
        "y": torch.ones(9, 2, 4),
        "factors": torch.ones(2, 3, 4),
        "row_ptr": torch.tensor([0, 1, 2]),
        "senders": torch.tensor([1, 0]),
        "reverse": torch.tensor([1, 0]),
    }
    inputs = {name: t.to(device) for name, t in (inputs | change).items()}
    with pytest.raises(InputError, match=message):
        message_passing(**inputs)
