from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mlff_triton.kernels.convolution import contracted_sums as contraction
from mlff_triton.kernels.convolution.contracted_sums import applies_weights_once
from mlff_triton.kernels.convolution.contraction_plan import COLUMNS, contraction_plan_of
from mlff_triton.kernels.convolution.edge_convolution import edge_convolution
from mlff_triton.kernels.convolution.outer_halves import OuterHalves
from mlff_triton.kernels.convolution.plan import FILLER
from mlff_triton.kernels.convolution.reference import edge_convolution as reference
from mlff_triton.kernels.convolution.types import TensorProduct
from mlff_triton.testing import assert_close, assert_within
from tests.kernels.convolution.cases import DEEP, MIXED, SCALARS, Inputs, inputs

CHANNELS = TensorProduct.of("2x0e + 1x1o", "1x0e + 1x1o", "70x0e + 3x1o")
"""More channels of an output than one job takes."""

SMALL = TensorProduct.of("2x0e + 1x1o", "1x0e + 1x1o", "2x0e + 1x1o")


@pytest.fixture(autouse=True)
def contract_always(monkeypatch):
    monkeypatch.setattr(contraction, "_WORTHWHILE", 0)
    monkeypatch.setattr(contraction, "_FEWEST_EDGES", 0)
    monkeypatch.setattr(contraction, "_MOST_EDGES", 10**9)


def assert_agrees(given: Inputs, product: TensorProduct, reduce: str = "sum") -> Tensor:
    """Compare with the reference in float64, within what float32 allows."""
    single = given.to(torch.float32)
    assert applies_weights_once(single.hidden, single.weight, single.row_ptr)
    found = edge_convolution(*single, product, reduce)
    expected = reference.edge_convolution(*given, product, reduce)
    assert_close(found, expected, 0, torch.float32)
    return found


@pytest.mark.parametrize(
    ("product", "hidden"),
    [(MIXED, 80), (CHANNELS, 64), (SCALARS, 144), (DEEP, 65), (SMALL, 200)],
    ids=["mixed", "channels", "scalars", "degree 3", "many hidden"],
)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_agrees_with_the_reference(product, hidden, reduce, device):
    assert_agrees(inputs(product, [3, 0, 33, 1], hidden, device), product, reduce)


@pytest.mark.parametrize(
    "counts", [[70, 5, 40], [32, 31, 0, 16], [33, 1, 2]], ids=["many", "few", "few but one"]
)
def test_receivers_have_few_or_many_edges(counts, device):
    assert_agrees(inputs(MIXED, counts, 80, device), MIXED)


@pytest.mark.gpu
@pytest.mark.parametrize("hidden", [64, 96, 144, 200, 256])
def test_sums_are_as_exact_as_those_of_pytorch(hidden, device):
    product = TensorProduct.of("48x0e + 10x1o + 10x1e", "1x0e + 1x1o + 1x2e", "48x0e + 10x1o")
    given = inputs(product, [24, 300, 0, 1, 32, 64, 7] * 20, hidden, device, n_nodes=50)
    single = given.to(torch.float32)
    exact = reference.edge_convolution(*given, product)
    error = (assert_agrees(given, product) - exact).square().mean().sqrt()
    plain = (reference.edge_convolution(*single, product) - exact).square().mean().sqrt()
    assert error < 1.5 * plain


@pytest.mark.parametrize("counts", [[], [0], [0, 0], [1]], ids=lambda counts: str(len(counts)))
def test_receivers_may_have_no_edges(counts, device):
    found = assert_agrees(inputs(SMALL, counts, 64, device), SMALL)
    assert not found[inputs(SMALL, counts, 64, device).row_ptr.diff() == 0].any()


def test_receivers_are_taken_in_parts(device, monkeypatch):
    given = inputs(SMALL, [2, 0, 5, 1, 3], 64, device)
    expected = assert_agrees(given, SMALL)
    row = contraction_plan_of(SMALL, torch.device(device)).n_columns * OuterHalves.bytes_of(64)
    for space in (2 * row, 1):
        monkeypatch.setattr(contraction, "_WORKSPACE", space)
        found = assert_agrees(given, SMALL)
        if device == "cuda":  # last bits of NumPy's products depend on the positions of rows
            assert torch.equal(found, expected)


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_rows_are_taken_in_parts(parts, device, monkeypatch):
    monkeypatch.setattr(contraction, "_parts_of", lambda *_: parts)
    assert_agrees(inputs(SMALL, [2, 0, 5], 64, device), SMALL)


def test_magnitudes_may_differ_between_irreps_edges_and_hidden_values(device):
    given = inputs(SMALL, [40, 2], 64, device)
    given.node[:, 2:] *= 1e-12
    given.hidden[1::2] *= 1e-9
    given.hidden[:, 5] *= 1e6
    given.edge_sh[3] *= 1e8
    single = given.to(torch.float32)
    exact = Inputs(*(x.double() for x in single[:5]), *single[5:])
    found = edge_convolution(*single, SMALL)
    expected = reference.edge_convolution(*exact, SMALL)
    for columns in (slice(0, 2), slice(2, 5)):
        assert_within(found[:, columns], expected[:, columns], 1e-6)


@pytest.mark.parametrize("value", [torch.nan, pytest.param(torch.inf, marks=pytest.mark.gpu)])
def test_values_that_are_not_finite_reach_their_receivers_only(value, device):
    given = inputs(SMALL, [2, 3, 1], 64, device).to(torch.float32)
    expected = edge_convolution(*given, SMALL)
    given.hidden[3, 7] = value
    found = edge_convolution(*given, SMALL)
    assert not found[1].isfinite().any()
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


def test_receivers_without_edges_do_not_see_those_of_others(device):
    given = inputs(SMALL, [2, 0, 1], 64, device).to(torch.float32)
    expected = edge_convolution(*given, SMALL)
    given.edge_sh[1] = torch.nan
    found = edge_convolution(*given, SMALL)
    assert found[0].isnan().all()
    assert torch.equal(found[1:], expected[1:])


def test_nodes_that_send_nothing_have_no_influence(device):
    given = inputs(SMALL, [2, 1], 64, device).to(torch.float32)
    given = given._replace(senders=given.senders.clamp(max=1))
    expected = edge_convolution(*given, SMALL)
    given.node[2] = torch.nan
    assert torch.equal(edge_convolution(*given, SMALL), expected)


def test_repeats_to_the_bit(device):
    given = inputs(MIXED, [3, 0, 40], 80, device).to(torch.float32)
    first = edge_convolution(*given, MIXED, "mean")
    assert torch.equal(edge_convolution(*given, MIXED, "mean"), first)


def test_takes_int32_and_strided_arguments(device):
    given = inputs(SMALL, [2, 1], 64, device).to(torch.float32)
    expected = edge_convolution(*given, SMALL)
    strided = (x.T.contiguous().T for x in given[:4])
    graph = given.row_ptr.int().repeat_interleave(2)[::2], given.senders.int()
    assert torch.equal(edge_convolution(*strided, given.bias, *graph, SMALL), expected)


def test_every_column_of_coupled_rows_has_one_place():
    plan = contraction_plan_of(MIXED, torch.device("cpu"))
    columns = torch.cat([tiles.columns for tiles in plan.tiles])
    assert torch.equal(columns, plan.columns.columns)
    assert torch.equal(columns[:, 0, 1], columns[:, :, 1].amax(1))
    columns = columns.flatten(0, 1)
    assert len(columns) % COLUMNS == 0
    places = columns[columns[:, 6] != FILLER, 6]
    assert torch.equal(places.sort()[0], torch.arange(plan.n_columns, dtype=torch.int32))


@pytest.mark.parametrize(
    ("dtype", "hidden", "counts", "expected"),
    [
        (torch.float32, 64, [24] * 2000, True),
        (torch.float32, 63, [24] * 2000, False),
        (torch.float64, 64, [24] * 2000, False),
        (torch.float16, 64, [24] * 2000, False),
        (torch.float32, 64, [24] * 20, False),
        (torch.float32, 64, [8] * 6000, False),
        (torch.float32, 64, [48_000], False),
    ],
    ids=["yes", "few hidden", "double", "half", "few edges", "few each", "one receiver"],
)
def test_chosen_where_receivers_have_many_edges(dtype, hidden, counts, expected, monkeypatch):
    monkeypatch.undo()
    n_edges = sum(counts)
    weight = torch.empty(hidden, 3, dtype=dtype)
    row_ptr = torch.tensor([0, *counts]).cumsum(0)
    assert applies_weights_once(weight.new_empty(n_edges, 1), weight, row_ptr) == expected
