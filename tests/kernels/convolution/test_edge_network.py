from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from mlff_triton.errors import InputError
from mlff_triton.kernels.convolution import edge_network as module
from mlff_triton.kernels.convolution.edge_network import edge_network
from mlff_triton.kernels.convolution.reference import edge_network as reference
from mlff_triton.testing import assert_close, assert_within
from mlff_triton.testing.launches import TARGETS
from tests.support.token_cases import DTYPES

ERRORS = {torch.float16: 1e-3, torch.bfloat16: 8e-3}

SIZES = [  # edges, columns of features and of each table of nodes, hidden values
    (1, 1, (1, 1), 1),
    (1, 5, (3,), 7),
    (63, 48, (48, 48), 144),
    (65, 33, (), 33),
    (70, 80, (16, 1, 20), 65),
    (500, 4, (6, 4), 24),
]
NODES = 9


class Inputs(NamedTuple):
    features: Tensor
    ends: list[tuple[Tensor, Tensor]]
    weight: Tensor
    bias: Tensor

    def to(self, *where: object) -> Inputs:
        """Convert the floating-point inputs, and move all if a device is given."""
        device = where[0] if isinstance(where[0], str) else self.bias.device
        ends = [(x.to(*where), i.to(device)) for x, i in self.ends]
        return Inputs(self.features.to(*where), ends, self.weight.to(*where), self.bias.to(*where))


def inputs(
    n_edges: int, columns: int, of_nodes: tuple[int, ...], n_hidden: int, device: str = "cpu"
) -> Inputs:
    """Return float64 inputs that half precisions hold exactly, with unequal tables of nodes."""
    rng = torch.Generator().manual_seed(n_edges)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng).bfloat16().double()

    n_in = columns + sum(of_nodes)
    ends = [
        (randn(NODES - k, width), torch.randint(NODES - k, (n_edges,), generator=rng))
        for k, width in enumerate(of_nodes)
    ]
    weight = (randn(n_in, n_hidden) / n_in**0.5).bfloat16().double()
    return Inputs(randn(n_edges, columns), ends, weight, randn(n_hidden)).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_agrees_with_the_reference(size, dtype, device):
    exact = inputs(*size, device=device)
    found = edge_network(*exact.to(dtype))
    truth = reference.edge_network(*exact)
    assert found.dtype == dtype
    if dtype in ERRORS:
        assert_within(found, truth, ERRORS[dtype])
    else:
        assert_close(found, truth, 0, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(20_000, 48, (48, 48), 144), (20_000, 144, (), 144)], ids=str)
def test_errors_are_at_most_those_of_pytorch(size):
    """Plain PyTorch joins all inputs, and multiplies them in float32."""
    exact = inputs(*size, device="cuda")
    given, truth = exact.to(torch.float32), reference.edge_network(*exact)
    own, other = (
        (operator(*given).double() - truth).abs()
        for operator in (edge_network, reference.edge_network)
    )
    assert own.max() <= 1.2 * other.max()
    assert own.square().mean() <= 1.1 * other.square().mean()


@pytest.mark.parametrize("activation", ["silu", "tanh", "none"])
def test_activations_follow_the_sum(activation, device):
    given = inputs(30, 6, (4, 5), 8, device)
    assert_close(edge_network(*given, activation), reference.edge_network(*given, activation), 0)


@pytest.mark.parametrize(("n_edges", "n_hidden"), [(0, 8), (3, 0)])
def test_no_edges_and_no_hidden_values_give_empty_results(n_edges, n_hidden, device):
    given = inputs(n_edges, 6, (4,), n_hidden, device)
    assert edge_network(*given).shape == (n_edges, n_hidden)


def test_edges_may_have_no_features_of_their_own(device):
    given = inputs(7, 0, (4, 5), 8, device)
    assert_close(edge_network(*given), reference.edge_network(*given), 0)


def test_no_edges_need_no_nodes(device):
    given = inputs(0, 6, (4,), 8, device)
    ends = [(x[:0], i) for x, i in given.ends]
    assert edge_network(*given._replace(ends=ends)).shape == (0, 8)


def test_takes_columns_of_wider_rows_strided_tensors_and_int32(device):
    given = inputs(20, 6, (4, 5), 8, device)
    wider = [(torch.cat([x, x + torch.nan], 1)[:, : x.shape[1]], i.int()) for x, i in given.ends]
    strided = (x.T.contiguous().T for x in (given.features, given.weight))
    features, weight = strided
    found = edge_network(features, wider, weight, torch.stack([given.bias] * 2, 1)[:, 0])
    assert torch.equal(found, edge_network(*given))
    turned = [(x.T.contiguous().T, i) for x, i in given.ends]
    assert torch.equal(edge_network(*given._replace(ends=turned)), found)


def test_nodes_without_edges_have_no_influence(device):
    given = inputs(20, 6, (4,), 8, device)
    ((node, index),) = given.ends
    index = index.clamp(max=NODES - 2)
    expected = edge_network(*given._replace(ends=[(node, index)]))
    node = node.clone()
    node[-1] = torch.nan
    assert torch.equal(edge_network(*given._replace(ends=[(node, index)])), expected)


def test_what_is_not_a_number_stays_in_its_edges(device):
    given = inputs(70, 6, (4,), 8, device).to(torch.float32)
    given.features[3] = torch.nan
    found = edge_network(*given)
    assert found[3].isnan().all()
    assert found.isnan().sum() == 8


def test_repeats_to_the_bit_in_any_order_of_edges(device):
    given = inputs(70, 6, (4, 5), 8, device).to(torch.float32)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1)).to(device)
    ends = [(x, i[order]) for x, i in given.ends]
    shuffled = given._replace(features=given.features[order], ends=ends)
    assert torch.equal(edge_network(*shuffled), edge_network(*given)[order])


def test_gradients_raise_instead_of_being_wrong(device):
    given = inputs(5, 6, (4,), 8, device)
    out = edge_network(given.features.requires_grad_(), *given[1:])
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        out.sum().backward()


def test_registered_completely(device):
    features, ends, weight, bias = inputs(5, 6, (4, 5), 8, device)
    nodes, index = [x for x, _ in ends], [i for _, i in ends]
    arguments = features, nodes, index, weight, bias, "relu"
    torch.library.opcheck(torch.ops.mlff_triton.edge_network, arguments)


def test_reference_has_gradients():
    given = inputs(5, 6, (4,), 8)
    leaves = [given.features, given.ends[0][0], given.weight, given.bias]

    def apply(features: Tensor, node: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return reference.edge_network(features, [(node, given.ends[0][1])], weight, bias, "silu")

    assert torch.autograd.gradcheck(apply, [x.requires_grad_() for x in leaves])


def ends_of(node: Tensor, index: Tensor) -> dict[str, object]:
    return {"ends": [(node, index)]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.ones(6)}, r"features has the shape \[6\] instead of \[E, C\]"),
        ({"weight": torch.ones(9, 8)}, r"weight has the shape \[9, 8\] instead of \[10, H\]"),
        ({"bias": torch.ones(7)}, r"bias has the shape \[7\] instead of \[8\]"),
        ({"bias": torch.ones(8).double()}, "bias is torch.float64.*the same for all"),
        (ends_of(torch.ones(9, 4), torch.zeros(4).long()), r"index 0 of ends has the shape \[4\]"),
        (ends_of(torch.ones(9, 4), torch.zeros(5)), "index 0 of ends is torch.float32: use int64"),
        (ends_of(torch.ones(9), torch.zeros(5).long()), r"node 0 of ends has the shape \[9\]"),
        (ends_of(torch.ones(0, 4), torch.zeros(5).long()), "node 0 of ends has no rows, but"),
        (
            ends_of(torch.ones(9, 4).half(), torch.zeros(5).long()),
            "node 0 of ends is torch.float16",
        ),
        ({"activation": "softmax"}, "activation='softmax' is unknown: use none, silu"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    def moved(value: object) -> object:
        if isinstance(value, Tensor):
            return value.to(device)
        return [tuple(map(moved, end)) for end in value] if isinstance(value, list) else value

    given = inputs(5, 6, (4,), 8, device).to(torch.float32)._asdict()
    with pytest.raises(InputError, match=message):
        edge_network(**(given | {name: moved(value) for name, value in change.items()}))


class Launches:
    """A kernel that notes its launches, and computes nothing."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []
        self.arguments: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def __getitem__(self, grid: tuple[int, ...]):
        self.grids.append(grid)
        return lambda *args, **options: self.arguments.append((args, options))


def test_millions_of_edges_are_on_the_first_axis_of_grids(device, monkeypatch):
    kernel = Launches()
    monkeypatch.setattr(module, "_edge_network_fwd_kernel", kernel)
    one = torch.zeros(1, device=device)
    features = one.expand(64 * 65_536, 1)
    edge_network(features, (), one[None], one)
    assert kernel.grids == [(65_536,)]


@pytest.mark.parametrize("name", ["_edge_network_fwd_kernel", "_node_terms_kernel"])
def test_kernels_are_compiled_once_for_all_numbers_of_edges_and_nodes(name, device, monkeypatch):
    launches, kernel = Launches(), getattr(module, name)
    for each in ("_edge_network_fwd_kernel", "_node_terms_kernel"):
        monkeypatch.setattr(module, each, launches if each == name else Launches())
    for n_edges, n_nodes, columns in ((16, 16, 48), (17, 32, 78), (20, 33, 160)):
        features, ends, weight, bias = inputs(n_edges, 48, (48, 48), 144, device)
        wide = torch.zeros(n_nodes, columns, dtype=torch.float64, device=device)[:, :48]
        for nodes in ((wide, wide), (wide, ends[1][0])):
            tables = [(x, i) for x, (_, i) in zip(nodes, ends, strict=True)]
            edge_network(features, tables, weight, bias)
    compiled = (
        kernel if isinstance(kernel, JITFunction) else JITFunction(kernel.fn, **kernel.kwargs)
    )
    backend = make_backend(TARGETS["sm_90"][0])
    bind = create_function_from_signature(compiled.signature, compiled.params, backend)
    variants = {str(bind(*args, debug=False, **options)[1]) for args, options in launches.arguments}
    assert len(launches.arguments) == 6
    assert len(variants) == 1
