from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from benchmarks.kernels import cases as operators
from benchmarks.kernels import edge_messages, radial_messages
from benchmarks.kernels import runner as ops
from benchmarks.kernels.cases import Operator
from benchmarks.kernels.source import CHANNELS, Source
from benchmarks.lab.schema import (
    read_rows,
    with_bytes,
)
from benchmarks.systems import models, systems
from mlff_triton._common import timing
from mlff_triton._common.timing import Timing
from mlff_triton.kernels.ops.reference.attention import attention as reference_attention
from mlff_triton.kernels.tensornet2.reference.edge_messages import (
    edge_messages as reference_messages,
)
from mlff_triton.kernels.tensornet2.reference.edge_messages import (
    edge_rows,
)
from mlff_triton.model.irreps import scale
from mlff_triton.neighbors.neighbor_list import neighbor_list
from tests.support.benchmark_rows import CPU
from tests.support.neighbor_rows import to_csr


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@pytest.mark.parametrize("n_rows", [1024, 500])
def test_pytorchs_attention_is_that_of_packed_sequences(n_rows):
    q, k, v, row_ptr = Source(n_rows, CPU).sequences()
    expected = reference_attention(q, k, v, row_ptr, len(q) // (len(row_ptr) - 1))
    found = operators.attention_eager(q, k, v, row_ptr)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_rows", [20, 21, 4095, 4096])
def test_segments_hold_all_rows(n_rows):
    _, row_ptr = Source(n_rows, CPU).segments()
    assert int(row_ptr[-1]) == n_rows
    assert int(row_ptr.diff().max()) <= 21


OPERATOR = Operator("double", Source.packed, double, lambda x: x + x)


def test_operators_are_measured_forward_and_backward(lab, monkeypatch):
    monkeypatch.setattr(ops, "copy_timing", lambda *_args: Timing(1.0, 1.0, 1.0, None))
    ops.run_operators(lab, [16], [OPERATOR])
    found = [(r.case, r.impl, r.gate) for r in read_rows(lab.results.path("ops"))]
    assert found == [
        (case, impl, "pass")
        for case in ("double-16", "double+grad-16")
        for impl in (ops.OURS, ops.EAGER)
    ]
    moved = with_bytes("double-16", 2 * 9 * 16 * CHANNELS * 4)
    copied = with_bytes("copy", 2 * timing.COPY_BYTES)
    assert {r.case for r in read_rows(lab.results.path("bandwidth"))} == {copied, moved}


@pytest.mark.parametrize(
    "wrong", [lambda x: 2.001 * x, lambda x: (2 * x)[:1], lambda x: x * torch.nan]
)
def test_a_wrong_operator_gets_no_time(lab, wrong):
    ops.run_operator(lab, replace(OPERATOR, ours=wrong), 16, backward=False)
    ours, eager = read_rows(lab.results.path("ops"))
    assert (ours.impl, ours.gate, ours.ms_p50) == ("triton", "fail", None)
    assert (eager.impl, eager.gate) == ("torch", "pass")


@pytest.mark.parametrize(
    "operator",
    [operator for operator in operators.OPERATORS if isinstance(operator.ours, partial)],
    ids=lambda operator: operator.name,
)
def test_operators_in_pytorch_are_the_references(operator):
    """The eager code is the truth here, so it must agree with the references of the kernels."""
    inputs = operator.inputs(Source(16, CPU))
    module, name = operator.ours.args
    stem = module.rpartition(".")[2]
    expected = operators.reference(stem, name, **operator.ours.keywords)(*inputs)
    for ours, theirs in zip(
        ops.outputs_of(operator.eager(*inputs)), ops.outputs_of(expected), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("small_model")
def test_fused_messages_in_pytorch_are_those_of_the_model():
    y, positions = inputs = radial_messages.inputs(Source(21, CPU))
    graph = neighbor_list(positions.numpy(), 5.0)
    network = models.model("random")
    edges = network._edges(graph.vectors(positions, None, None).float(), graph)
    factors = radial_messages.radial_functions(network)[1](
        torch.cat([torch.zeros(1), edges.distances])
    ).unflatten(1, (3, -1))
    of_edges = list(factors[edges.row].unbind(1))
    expected = edges.pass_messages(y, of_edges) + scale(y, factors[:1])
    torch.testing.assert_close(radial_messages.eager(*inputs), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("small_model")
def test_messages_with_charges_in_pytorch_are_those_of_the_reference():
    y, terms, positions = edge_messages.inputs(Source(21, CPU))
    exact = y.double(), terms.double()
    edges, weights = edge_messages._edges(21, CPU), edge_messages._weights(CPU, torch.float64)
    expected, _ = reference_messages(*exact, weights, edges, edge_rows(edges))
    found = edge_messages.eager(*exact, positions)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_neighbor_rows_hold_the_graph():
    box = systems.random_box(128)
    graph, where = box.graph(5.0), (torch.from_numpy(box.positions), torch.eye(3).double()[None])
    neighbors = radial_messages.neighbor_matrix(graph, *where)
    found = to_csr(neighbors)
    for ours, theirs in zip(
        found, (graph.row_ptr, graph.senders, graph.shifts, graph.reverse), strict=True
    ):
        assert torch.equal(ours, theirs)
    assert int(neighbors.needed) == int(graph.row_ptr.diff().max())
    with pytest.raises(ValueError, match="raise the capacity of 8"):
        radial_messages.neighbor_matrix(graph, *where, capacity=8)


@pytest.mark.gpu
@pytest.mark.parametrize("operator", operators.OPERATORS, ids=lambda operator: operator.name)
def test_every_operator_is_right_on_a_gpu(gpu_lab, operator):
    for backward in (False, True)[: 1 + operator.differentiable]:
        ops.run_operator(gpu_lab, operator, 500, backward)
    rows = read_rows(gpu_lab.results.path("ops"))
    assert {r.gate for r in rows} == {"pass"}
