from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.convolution import (
    channel_messages,
    coupled_rows,
    edge_gradients,
    edge_messages,
    outer_sums,
)
from mlff_triton.kernels.convolution.channel_plan import jobs_by_output
from mlff_triton.kernels.convolution.coupled_columns import coupled_columns
from mlff_triton.kernels.convolution.edge_blocks import EdgeInputs, pack_weight
from mlff_triton.kernels.convolution.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.plan import plan_of
from mlff_triton.kernels.convolution.reference import edge_convolution as reference
from mlff_triton.kernels.convolution.types import TensorProduct
from mlff_triton.testing import assert_close, assert_within
from tests.kernels.convolution.cases import (
    CHANNELWISE,
    DEEP,
    MIXED,
    SCALARS,
    WIDE,
    Inputs,
    inputs,
)
from tests.support.operators import assert_matches

SMALL = TensorProduct.of("2x0e + 1x1o", "1x0e + 1x1o", "2x0e + 1x1o")
SMALL_CHANNELWISE = TensorProduct.of(
    "2x0e", "1x0e + 1x1o", "2x0e + 2x1o", [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]
)
both = pytest.mark.parametrize("product", [SMALL, SMALL_CHANNELWISE], ids=["uvw", "uvu"])


@pytest.mark.parametrize("product", [MIXED, CHANNELWISE, SCALARS], ids=["uvw", "uvu", "scalars"])
def test_agrees_with_the_reference_to_second_order(product, device, dtype):
    given = inputs(product, [3, 0, 2], 5, device).to(dtype)
    reduce = "mean" if dtype == torch.float64 else "sum"
    assert_matches(edge_convolution, reference.edge_convolution, *given, product, reduce)


def test_degree_three_agrees_with_the_reference(device):
    given = inputs(DEEP, [2, 1], 3, device)
    assert_matches(edge_convolution, reference.edge_convolution, *given, DEEP, "sum")


def test_all_degrees_and_numbers_of_channels_agree_with_the_reference(device):
    given = inputs(WIDE, [9, 0, 2], 3, device)

    def run(operator):
        leaves = [x.detach().requires_grad_() for x in given[:5]]
        out = operator(*leaves, *given[5:], WIDE, "mean")
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    pairs = zip(run(edge_convolution), run(reference.edge_convolution), strict=True)
    for actual, expected in pairs:
        assert_close(actual, expected, 1)


@both
def test_many_hidden_values_agree_with_the_reference(product, device):
    """Kernels split them in two blocks, and multiply halves."""
    given = inputs(product, [2, 1], 80, device).to(torch.float32)
    assert_matches(edge_convolution, reference.edge_convolution, *given, product, "mean")


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_weights_of_few_paths_fit_on_chip(kept, device, monkeypatch):
    """Outputs with more paths load weights again for all chunks of edges."""
    monkeypatch.setattr(channel_messages, "blocks_on_chip", lambda _: kept)
    given = inputs(CHANNELWISE, [20, 0, 2], 5, device)
    found = edge_convolution(*given, CHANNELWISE, "sum")
    assert_close(found, reference.edge_convolution(*given, CHANNELWISE, "sum"), 0)


@pytest.mark.parametrize(("kept", "expected"), [(1, [3, 2, 1, 2]), (3, [3, 3, 2]), (None, [6, 2])])
def test_outputs_share_a_job_while_their_weights_fit_on_chip(kept, expected):
    jobs = jobs_by_output(CHANNELWISE, 8, kept).jobs
    assert [len(job.paths) for job in jobs] == expected


@both
@pytest.mark.parametrize(
    "counts", [[], [0], [0, 0, 0], [1], [0, 1, 0], [5, 0, 1]], ids=lambda counts: str(sum(counts))
)
def test_receivers_may_have_no_edges(counts, product, device):
    given = inputs(product, counts, 3, device)
    found = edge_convolution(*given, product, "mean")
    assert_close(found, reference.edge_convolution(*given, product, "mean"), 0)
    empty = given.row_ptr.diff() == 0
    assert not found[empty].any()


@both
def test_no_edges_give_no_gradients(product, device):
    floats = inputs(product, [0, 0], 3, device)
    leaves = [x.requires_grad_() for x in floats[:5]]
    out = edge_convolution(*leaves, *floats[5:], product)
    for gradient in torch.autograd.grad(out.sum(), leaves):
        assert not gradient.any()


@both
def test_300_edges_of_one_receiver_agree_with_the_reference(product, device):
    given = inputs(product, [300, 2], 3, device)
    found = edge_convolution(*given.to(torch.float32), product, "sum")
    assert_close(found, reference.edge_convolution(*given, product, "sum"), 0, torch.float32)


def test_thousands_of_edges_of_one_receiver_agree_with_the_reference(device):
    product = TensorProduct.of("1x0e", "1x0e", "1x0e")
    given = inputs(product, [1100], 1, device)
    found = edge_convolution(*given, product, "mean")
    assert_close(found, reference.edge_convolution(*given, product, "mean"), 0)


@both
def test_nodes_may_send_to_themselves_and_twice(product, device):
    given = inputs(product, [2, 2], 3, device, n_nodes=2)
    given = given._replace(senders=torch.tensor([0, 0, 1, 1], device=device))
    assert_matches(edge_convolution, reference.edge_convolution, *given, product, "sum")


@both
def test_is_equivariant(product, transform, device):
    given = inputs(product, [3, 1], 3, device)
    turns = [
        transform(irreps).to(device) for irreps in (product.node, product.harmonics, product.output)
    ]
    turned = given._replace(node=given.node @ turns[0].T, edge_sh=given.edge_sh @ turns[1].T)
    found = edge_convolution(*turned, product)
    assert_close(found, edge_convolution(*given, product) @ turns[2].T, 0)


@both
def test_order_of_edges_and_nodes_does_not_matter(product, device):
    given = inputs(product, [3, 2, 4], 3, device)
    expected = edge_convolution(*given, product)
    edges = torch.tensor([2, 0, 1, 4, 3, 8, 6, 5, 7], device=device)
    per_edge = (given.edge_sh[edges], given.hidden[edges], given.weight, given.bias)
    shuffled = Inputs(given.node, *per_edge, given.row_ptr, given.senders[edges])
    assert_close(edge_convolution(*shuffled, product), expected, 0)
    nodes = torch.tensor([2, 0, 1], device=device)
    renamed = given._replace(node=given.node[nodes], senders=nodes.argsort()[given.senders])
    assert torch.equal(edge_convolution(*renamed, product), expected)


@both
def test_nodes_that_send_nothing_have_no_influence(product, device):
    given = inputs(product, [2, 1], 3, device)
    given = given._replace(senders=given.senders.clamp(max=1))
    expected = edge_convolution(*given, product)
    given.node[2] = torch.nan
    assert torch.equal(edge_convolution(*given, product), expected)


@both
def test_takes_int32_and_strided_arguments_and_no_bias(product, device):
    given = inputs(product, [2, 1], 3, device)
    zero = torch.zeros_like(given.bias)
    expected = edge_convolution(*given._replace(bias=zero), product)
    strided = (x.T.contiguous().T for x in given[:4])
    graph = given.row_ptr.int(), given.senders.int()
    assert torch.equal(edge_convolution(*strided, None, *graph, product), expected)


@pytest.mark.parametrize(
    ("half", "error"),
    [
        (torch.float16, 2e-3),
        pytest.param(torch.bfloat16, 2e-2, marks=pytest.mark.gpu),  # see `interpreter`
    ],
)
@both
def test_half_precisions_are_summed_in_float32(product, half, error, device):
    given = inputs(product, [3, 1], 5, device).to(half)
    leaves = [x.requires_grad_() for x in given[:5]]
    out = edge_convolution(*leaves, *given[5:], product, "mean")
    found = out, *torch.autograd.grad(out.sum(), leaves)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    truth = reference.edge_convolution(*exact, *given[5:], product, "mean")
    expected = truth, *torch.autograd.grad(truth.sum(), exact)
    for actual, right in zip(found, expected, strict=True):
        assert actual.dtype == half
        assert_within(actual, right, error)


@both
def test_repeats_to_the_bit(product, device):
    given = inputs(product, [3, 0, 2], 5, device).to(torch.float32)

    def run() -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in given[:5]]
        out = edge_convolution(*leaves, *given[5:], product, "mean")
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


@both
@pytest.mark.parametrize("leaf", range(5), ids=Inputs._fields[:5])
def test_gradients_are_computed_only_where_wanted(leaf, product, device):
    given = inputs(product, [2, 1], 3, device)
    wanted = given[leaf].requires_grad_()
    out = edge_convolution(*given, product)
    (gradient,) = torch.autograd.grad(out.sum(), wanted)
    (expected,) = torch.autograd.grad(reference.edge_convolution(*given, product).sum(), wanted)
    assert_close(gradient, expected, 1)


def test_gradients_of_many_edges_of_one_receiver_agree_with_the_reference(device):
    given = inputs(SMALL, [0, 100], 3, device)  # which several programs share

    def run(operator):
        leaves = [x.detach().requires_grad_() for x in given[:5]]
        out = operator(*leaves, *given[5:], SMALL, "mean")
        return torch.autograd.grad(out.square().sum(), leaves)

    for actual, right in zip(run(edge_convolution), run(reference.edge_convolution), strict=True):
        assert_close(actual, right, 1)


def test_outputs_without_edges_have_no_influence_on_gradients(device):
    given = inputs(SMALL, [2, 0, 1], 3, device)
    grad = torch.ones(3, SMALL.n_outputs, dtype=given.node.dtype, device=device)
    find = torch.ops.mlff_triton.edge_convolution_gradient
    expected = find(grad, *given, SMALL.text, "mean", list(range(5)))
    grad[1] = torch.nan
    found = find(grad, *given, SMALL.text, "mean", list(range(5)))
    for actual, right in zip(found, expected, strict=True):
        assert torch.equal(actual, right)


@both
def test_other_gradients_are_empty(product, device):
    given = inputs(product, [2, 1], 3, device)
    grad = torch.ones(2, product.n_outputs, dtype=given.node.dtype, device=device)
    find = torch.ops.mlff_triton.edge_convolution_gradient
    for wanted in ([0], [1], [2], [3], [4], [0, 4], [1, 2, 3]):
        found = find(grad, *given, product.text, "sum", wanted)
        shapes = [x.shape if k in wanted else (0,) for k, x in enumerate(given[:5])]
        assert [x.shape for x in found] == shapes


def test_second_derivatives_exist_where_gradients_are_wanted(device):
    given = inputs(SMALL, [2, 1], 3, device)
    leaves = given.edge_sh.requires_grad_(), given.weight.requires_grad_()

    def second(operator):
        out = operator(*given, SMALL, "mean").square().sum()
        (first,) = torch.autograd.grad(out, leaves[0], create_graph=True)
        return torch.autograd.grad(first.square().sum(), leaves)

    for actual, expected in zip(
        second(edge_convolution), second(reference.edge_convolution), strict=True
    ):
        assert_close(actual, expected, 2)


def test_gradients_do_not_depend_on_how_many_receivers_fit_in_memory(device, monkeypatch):
    given = inputs(MIXED, [2, 0, 3, 0, 0, 1], 3, device)

    def run() -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in given[:5]]
        out = edge_convolution(*leaves, *given[5:], MIXED, "mean")
        return torch.autograd.grad(out.square().sum(), leaves)

    expected = run()
    monkeypatch.setattr(edge_gradients, "_BYTES", 0)
    monkeypatch.setattr(edge_gradients, "_MULTIPLE", 2)
    for actual, right in zip(run(), expected, strict=True):
        assert_close(actual, right, 1)


@both
def test_derivatives_of_reference(product):
    given = inputs(product, [2, 0, 1], 2, "cpu")
    leaves = [x.requires_grad_() for x in given[:5]]

    def convolve(*floats: Tensor) -> Tensor:
        return reference.edge_convolution(*floats, *given[5:], product, "mean")

    assert torch.autograd.gradcheck(convolve, leaves)


@both
def test_registered_completely(product, device):
    given = inputs(product, [2, 1], 3, device)
    leaves = [x.requires_grad_() for x in given[:5]]
    arguments = *leaves, *given[5:], product.text, "mean"
    torch.library.opcheck(torch.ops.mlff_triton.edge_convolution, arguments)
    grad = torch.ones(2, product.n_outputs, dtype=given.node.dtype, device=device)
    gradient = torch.ops.mlff_triton.edge_convolution_gradient
    tests = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(gradient, (grad, *arguments, [1, 2, 4]), test_utils=tests)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node": torch.ones(3, 4)}, r"node has the shape \[3, 4\] instead of \[S, 5\]"),
        ({"edge_sh": torch.ones(3, 5)}, r"edge_sh has the shape \[3, 5\] instead of \[3, 4\]"),
        ({"hidden": torch.ones(2, 3)}, r"hidden has the shape \[2, 3\] instead of \[3, H\]"),
        ({"hidden": torch.ones(3, 257)}, "hidden has 257 values per edge: use 1 to 256"),
        ({"weight": torch.ones(3, 4)}, r"weight has the shape \[3, 4\]"),
        ({"bias": torch.ones(1)}, r"bias has the shape \[1\]"),
        ({"row_ptr": torch.ones(3)}, "row_ptr is torch.float32: use int64 or int32"),
        ({"row_ptr": torch.ones(0).long()}, "row_ptr is empty"),
        ({"row_ptr": torch.ones(1).long()}, "there are 3 edges, but no nodes"),
        ({"senders": torch.ones(3).short()}, "senders is torch.int16"),
        ({"node": torch.ones(3, 5).double()}, "node is torch.float64.*the same for all"),
        ({"reduce": "max"}, "reduce='max' is unknown: use 'sum' or 'mean'"),
    ],
)
def test_refuses_what_does_not_fit(change, message, device):
    given = inputs(SMALL, [2, 1], 3, device).to(torch.float32)._asdict()
    moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in change.items()}
    with pytest.raises(InputError, match=message):
        edge_convolution(**(given | {"product": SMALL} | moved))


class Grids:
    """A kernel that notes the grids of its launches, and computes nothing."""

    def __init__(self) -> None:
        self.found: list[tuple[int, ...]] = []

    def __getitem__(self, grid):
        self.found.append(grid)
        return lambda *_, **__: None


def test_millions_of_edges_are_on_the_first_axis_of_grids(device, monkeypatch):
    product, n_edges = TensorProduct.of("1x0e", "1x0e", "1x0e"), 64 * 65_536
    plan = plan_of(product, device)
    edges = torch.zeros(1, device=device).expand(n_edges, 1)
    senders = torch.zeros(1, dtype=torch.int64, device=device).expand(n_edges)
    inputs = EdgeInputs(edges[:1], edges, edges, senders)
    packed = pack_weight(edges[:1], edges[0], plan.source)
    grids = Grids()
    monkeypatch.setattr(edge_messages, "_edge_messages_fwd_kernel", grids)
    monkeypatch.setattr(coupled_rows, "_coupled_rows_fwd_kernel", grids)
    edge_messages.edge_messages(inputs, packed, plan, product)
    coupled_rows.coupled_rows(edges[:1], edges, senders, coupled_columns(product, edges.device))
    assert [grid[0] >= 65_536 and max(grid[1:], default=1) < 65_536 for grid in grids.found] == [
        True
    ] * 2


def test_programs_share_the_edges_of_few_receivers(device, monkeypatch):
    n_edges = 32 * 100_000
    edges = torch.zeros(1, device=device).expand(n_edges, 1)
    sums = torch.zeros(1, 1, 32, device=device)
    grids = Grids()
    monkeypatch.setattr(outer_sums, "_hidden_gradient_kernel", grids)
    monkeypatch.setattr(outer_sums, "_coupled_gradient_kernel", grids)
    splits = outer_sums.splits_of_edges(n_edges, 1)
    row_ptr = torch.tensor([0, n_edges], device=device)
    outer_sums.write_hidden_gradient(sums, edges, row_ptr, edges, splits)
    outer_sums.write_coupled_gradient(sums, edges, row_ptr, edges, splits)
    assert grids.found == [(1, 65_535)] * 2  # the most that an axis holds
