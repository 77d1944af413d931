"""Bench ``convolution`` with few channels and edges."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.kernels import convolution
from benchmarks.kernels.convolution_peers import WAYS, channels_last
from benchmarks.kernels.convolution_problems import build, docking_shapes, mace_shapes
from benchmarks.lab import tables
from benchmarks.lab.schema import Results, read_rows
from mlff_triton.kernels.convolution.types import read_irreps
from tests.support.benchmark_rows import CPU, row

EDGES = 9


@pytest.fixture
def small(monkeypatch):
    shapes = docking_shapes(2, 1) | mace_shapes(2)
    cases = {name: (shape, EDGES) for name, shape in shapes.items()}
    monkeypatch.setattr(convolution, "CASES", cases)
    monkeypatch.setattr(convolution, "EDGES_AT_ONCE", 4)
    monkeypatch.setattr(convolution, "clean_up", lambda _: None)  # which takes most of the time
    convolution.truth.cache_clear()
    yield list(cases)
    convolution.truth.cache_clear()


def test_shapes_are_those_of_the_models():
    weights = {name: shape.product.n_weights for name, shape in docking_shapes().items()}
    assert (weights["layer-1"], weights["layer-4"]) == (2784, 7128)
    paths = {name: len(shape.product.paths) for name, shape in mace_shapes().items()}
    of_degrees = {"mace-0": 4, "mace-1": 10, "mace-2": 17}
    assert paths == of_degrees | {f"{name}-network": n for name, n in of_degrees.items()}
    assert len(convolution.CASES) == 6 * 3 + 6 * 2


def test_references_are_held_against_float64(lab, small, capfd):
    convolution.run_convolution(lab, small, ["torch", "torch-backward"])
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("convolution"))
    assert [(r.case, r.impl, r.gate) for r in rows] == [
        (name, impl, "pass") for name in small for impl in ("torch", "torch-backward")
    ]
    assert all(1e-9 < r.error < 2e-6 for r in rows)
    assert {r.edges for r in rows} == {EDGES}


def test_e3nn_is_held_against_float64(lab, small, capfd):
    pytest.importorskip("e3nn", reason="e3nn is not installed")
    some = [name for name in small if name in ("layer-2", "mace-1")]
    convolution.run_convolution(lab, some, ["e3nn", "e3nn-backward"])
    assert not capfd.readouterr().err
    assert all(r.error < 2e-6 for r in read_rows(lab.results.path("convolution")))


@pytest.mark.gpu
def test_kernels_pass_the_gate(gpu_lab, small, capfd):
    ours = [f"triton{mode}" for mode in ("", convolution.GRAPH, convolution.BACKWARD)]
    convolution.run_convolution(gpu_lab, small, ours)
    assert not capfd.readouterr().err
    rows = read_rows(gpu_lab.results.path("convolution"))
    assert [(r.case, r.impl, r.gate) for r in rows] == [(n, i, "pass") for n in small for i in ours]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("factor", [1.1, math.nan])
def test_wrong_results_of_ours_get_no_time(lab, monkeypatch, factor):
    right = WAYS["torch"]

    def wrong(problem):
        convolve = right(problem)
        return lambda *floats: factor * convolve(*floats)

    monkeypatch.setitem(WAYS, "triton", wrong)
    monkeypatch.setattr(convolution, "triton_obstacle", lambda _: None)
    convolution.run_convolution(lab, ["layer-1"], ["triton"])
    (found,) = read_rows(lab.results.path("convolution"))
    assert (found.ms_p50, found.gate) == (None, "fail")


@pytest.mark.usefixtures("small")
def test_what_cannot_run_is_skipped_with_the_reason(lab, monkeypatch, capfd):
    monkeypatch.setattr(convolution, "find_spec", lambda _: None)
    wanted = ["openequivariance", "luna-graph", "torch-graph"]
    convolution.run_convolution(lab, ["layer-1", "mace-0"], wanted)
    errors = capfd.readouterr().err
    assert "convolution mace-0 luna-graph: skipped, LunaEquivariance is not installed" in errors
    assert "convolution layer-1 torch-graph: skipped, no GPU" in errors
    assert "layer-1 luna" not in errors
    assert not read_rows(lab.results.path("convolution"))


def test_graphs_that_kill_the_process_are_not_run(monkeypatch):
    monkeypatch.setattr(convolution, "find_spec", lambda _: True)
    gpu, graph = torch.device("cuda"), "openequivariance-graph"
    obstacle = convolution._obstacle("openequivariance", graph, gpu, mixes=False)
    assert obstacle is not None
    assert "access memory" in obstacle
    assert convolution._obstacle("openequivariance", graph, gpu, mixes=True) is None


def test_layouts_are_undone():
    irreps = read_irreps("2x0e + 3x1o")
    rows = torch.arange(22.0).reshape(2, 11)
    turned = channels_last(rows, irreps)
    assert turned[0].tolist() == [0, 1, 2, 5, 8, 3, 6, 9, 4, 7, 10]
    assert torch.equal(channels_last(turned, irreps, back=True), rows)


def test_peers_may_read_the_weights_that_tables_give():
    problem = build(mace_shapes(2)["mace-1"], EDGES, CPU)
    out, *gradients = convolution.exact_results(problem, backward=True)
    given, *_ = convolution.exact_results(problem.given, backward=False)
    assert torch.equal(out, given)
    assert [g.shape for g in gradients] == [x.shape for x in problem.floats]


def test_convolutions_are_tabulated_with_their_best_peers(tmp_path):
    times = {"triton-graph": 1.0, "e3nn-graph": 9.0, "luna-graph": 2.0, "triton-backward": 4.0}
    Results(tmp_path).add(
        row(bench="convolution", case="mace-0-1000", impl=impl, ms=ms) for impl, ms in times.items()
    )
    line = tables.convolution_table(tmp_path).splitlines()[2]
    assert "| mace-0-1000 | 332 | **1** | 2 (luna) | 2.0x |" in line
    assert "**4** | – | – |" in line


@pytest.mark.usefixtures("small")
def test_cases_and_implementations_are_selected_by_name(tmp_path):
    options = ["--device", "cpu", "--sampling", "0.01", "--out", str(tmp_path)]
    selected = ["--cases", "layer-1", "--only", "torch"]
    assert command.main(["convolution", *selected, *options]) == 0
    (found,) = read_rows(tmp_path / "convolution.csv")
    assert (found.case, found.impl) == ("layer-1", "torch")
