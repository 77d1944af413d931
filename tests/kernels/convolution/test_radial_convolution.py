from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.convolution.radial_convolution import radial_convolution
from mlff_triton.kernels.convolution.reference import radial_convolution as reference
from mlff_triton.kernels.convolution.types import TensorProduct
from mlff_triton.kernels.types.edges import Knots
from mlff_triton.testing import assert_close
from tests.kernels.convolution.cases import CHANNELWISE, MIXED, WIDE, inputs
from tests.support.operators import assert_matches

SMALL = TensorProduct.of(
    "2x0e", "1x0e + 1x1o", "2x0e + 2x1o", [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]
)


class Case:
    """Random nodes, edges and tables, in float64."""

    def __init__(self, product: TensorProduct, counts: list[int], device: str) -> None:
        given = inputs(product, counts, 3, device)
        rng = torch.Generator().manual_seed(3)
        widths = torch.tensor([1, 1, 2])
        positions = 0.5 + 0.5 * torch.cat([torch.zeros(1).long(), widths.cumsum(0)]).double()
        intervals = torch.arange(3, dtype=torch.int32).repeat_interleave(widths)
        lengths = 0.6 + 1.8 * torch.rand(sum(counts), generator=rng, dtype=torch.float64)
        shape = len(positions), 3, product.n_weights
        self.product = product
        self.floats = given.node, given.edge_sh, lengths.to(device)
        self.table = torch.randn(shape, generator=rng, dtype=torch.float64).to(device)
        self.knots = Knots(positions.to(device), intervals.to(device))
        self.graph = given.row_ptr, given.senders

    @property
    def arguments(self) -> tuple[object, ...]:
        """Arguments of the operator."""
        return *self.floats, self.table, self.knots, *self.graph, self.product


@pytest.mark.parametrize("counts", [[3, 0, 2], [1], []], ids=["some", "one", "none"])
def test_agrees_with_the_reference_to_second_order(counts, device, dtype):
    case = Case(CHANNELWISE, counts, device)

    def constant(operator):
        def call(node: Tensor, *edges: Tensor) -> Tensor:
            table = case.table.to(node.dtype)
            return operator(node, *edges, table, case.knots, *case.graph, case.product, "mean")

        return call

    rounded = (x.to(dtype) for x in case.floats)
    operators = radial_convolution, reference.radial_convolution
    assert_matches(*map(constant, operators), *rounded)


def test_all_degrees_and_numbers_of_channels_agree_with_the_reference(device, dtype):
    case = Case(WIDE, [9, 0, 2], device)
    seed = torch.randn(3, WIDE.n_outputs, generator=torch.Generator().manual_seed(1)).to(device)

    def run(operator, precision):
        leaves = [x.to(dtype).to(precision).requires_grad_() for x in case.floats]
        table = case.table.to(dtype).to(precision)
        out = operator(*leaves, table, *case.arguments[4:], "mean")
        return out, *torch.autograd.grad(out, leaves, seed.to(dtype).to(precision))

    found, truth = run(radial_convolution, dtype), run(reference.radial_convolution, torch.float64)
    for actual, expected in zip(found, truth, strict=True):
        assert_close(actual, expected, 1, dtype)


def test_gradients_of_edges_do_not_depend_on_those_of_nodes(device):
    case = Case(CHANNELWISE, [3, 0, 2], device)
    rest = case.arguments[3:]
    leaves = [x.requires_grad_() for x in case.floats]
    expected = torch.autograd.grad(radial_convolution(*leaves, *rest).square().sum(), leaves)
    constant = radial_convolution(case.floats[0].detach(), *leaves[1:], *rest)
    found = torch.autograd.grad(constant.square().sum(), leaves[1:])
    for actual, right in zip(found, expected[1:], strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-12, atol=1e-12)  # float64


def test_distances_that_are_not_numbers_make_no_numbers(device):
    case = Case(SMALL, [1, 1], device)
    node, edge_sh, distance = case.floats
    distance[1] = torch.nan
    out = radial_convolution(node, edge_sh, distance, *case.arguments[3:])
    assert out[0].isfinite().all()
    assert out[1].isnan().all()


def test_300_edges_of_one_receiver_agree_with_the_reference(device):
    case = Case(SMALL, [300, 1], device)
    found = radial_convolution(*case.arguments)
    assert_close(found, reference.radial_convolution(*case.arguments), 0)


def test_is_equivariant(transform, device):
    case = Case(SMALL, [3, 1], device)
    expected = radial_convolution(*case.arguments)
    turns = [transform(irreps).to(device) for irreps in (SMALL.node, SMALL.harmonics, SMALL.output)]
    node, edge_sh, distance = case.floats
    turned = node @ turns[0].T, edge_sh @ turns[1].T, distance, *case.arguments[3:]
    assert_close(radial_convolution(*turned), expected @ turns[2].T, 0)


def test_repeats_to_the_bit(device):
    case = Case(SMALL, [3, 0, 2], device)

    def run() -> tuple[Tensor, ...]:
        leaves = [x.float().requires_grad_() for x in case.floats]
        out = radial_convolution(*leaves, case.table.float(), *case.arguments[4:])
        return out, *torch.autograd.grad(out.square().sum(), leaves)

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_derivatives_of_reference():
    case = Case(SMALL, [2, 0, 1], "cpu")
    leaves = [x.requires_grad_() for x in case.floats]

    def convolve(*floats: Tensor) -> Tensor:
        return reference.radial_convolution(*floats, *case.arguments[3:])

    assert torch.autograd.gradcheck(convolve, leaves)


def test_registered_completely(device):
    case = Case(SMALL, [2, 1], device)
    leaves = [x.requires_grad_() for x in case.floats]
    arguments = *leaves, case.table, *case.knots, *case.graph, SMALL.text, "sum"
    torch.library.opcheck(torch.ops.mlff_triton.radial_convolution, arguments)


def test_refuses_what_does_not_fit(device):
    case = Case(SMALL, [2, 1], device)
    named = dict(
        zip(
            ("node", "edge_sh", "distance", "table", "knots", "row_ptr", "senders", "product"),
            case.arguments,
            strict=True,
        )
    )
    single = Knots(case.knots.positions.float(), case.knots.intervals)
    for change, message in (
        ({"distance": case.floats[2][:2]}, r"distance has the shape \[2\] instead of \[3\]"),
        ({"table": case.table[:2]}, r"table has the shape \[2, 3, 4\] instead of \[4, 3, 4\]"),
        ({"table": case.table.clone().requires_grad_()}, "table gets no gradient: detach it"),
        ({"knots": single}, "knots.positions is torch.float32: use float64"),
        ({"node": case.floats[0].half()}, "node is torch.float16.*use float32 or float64"),
        ({"reduce": "max"}, "reduce='max' is unknown"),
    ):
        with pytest.raises(InputError, match=message):
            radial_convolution(**(named | change))
    node, edge_sh, distance = inputs(MIXED, [2, 1], 3, device)[:3]
    mixed = {"node": node, "edge_sh": edge_sh, "distance": distance[:, 0], "product": MIXED}
    with pytest.raises(InputError, match="a product that mixes channels needs a network per edge"):
        radial_convolution(**(named | mixed))
