"""Bench ``pairs`` with few tokens and channels."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.bio import pairs
from benchmarks.lab import tables
from benchmarks.lab.schema import Results, read_rows
from tests.support.benchmark_rows import CPU, row

TOKENS = 9
PEERS = ["torch-bf16", "torch-fp32"]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(pairs, "CHANNELS", 32)
    monkeypatch.setattr(pairs, "HEADS", 2)
    monkeypatch.setattr(pairs, "DIM", 16)
    cases = {f"{name}-{TOKENS}": (name, TOKENS) for name in pairs.OPERATORS}
    monkeypatch.setattr(pairs, "CASES", cases)
    pairs.truth.cache_clear()
    yield [name for name, (kind, _) in cases.items() if kind not in pairs.PACKAGES]
    pairs.truth.cache_clear()


def test_operators_are_held_against_float64(lab, small, capfd):
    pairs.run_pairs(lab, small, PEERS)
    assert not capfd.readouterr().err
    rows = read_rows(lab.results.path("pairs"))
    assert [(r.case, r.impl, r.gate) for r in rows] == [
        (n, i, "pass") for n in small for i in PEERS
    ]
    assert all(1e-4 < r.error < 2e-2 for r in rows if r.impl == "torch-bf16")
    assert all(r.error < 1e-6 for r in rows if r.impl == "torch-fp32")


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize("block", pairs.PACKAGES)
def test_blocks_are_held_against_float64(block, lab, capfd):
    package = pairs.PACKAGES[block]
    pytest.importorskip(package, reason=f"{package} is not installed")
    pairs.run_pairs(lab, [f"{block}-{TOKENS}"], PEERS)
    assert not capfd.readouterr().err
    bf16, fp32 = read_rows(lab.results.path("pairs"))
    assert 1e-4 < bf16.error < 2e-2
    assert fp32.error < 1e-6


@pytest.mark.gpu
def test_kernels_pass_the_gate(gpu_lab, small, capfd):
    ours = [f"{pairs.OURS}-{precision}" for precision in pairs.DTYPES]
    pairs.run_pairs(gpu_lab, small, ours)
    assert not capfd.readouterr().err
    rows = read_rows(gpu_lab.results.path("pairs"))
    assert [(r.case, r.impl, r.gate) for r in rows] == [(n, i, "pass") for n in small for i in ours]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("factor", [1.1, math.nan])
def test_wrong_results_of_ours_get_no_time(lab, monkeypatch, factor):
    name = f"transition-{TOKENS}"
    ways = pairs.OPERATORS["transition"].ways

    def wrong(setup, dtype):
        right = ways["torch"](setup, dtype)
        return lambda: right() * factor

    monkeypatch.setitem(ways, pairs.OURS, wrong)
    pairs.run_pairs(lab, [name], [f"{pairs.OURS}-bf16"])
    (found,) = read_rows(lab.results.path("pairs"))
    assert (found.ms_p50, found.gate) == (None, "fail")


@pytest.mark.usefixtures("small")
def test_peers_that_are_not_installed_are_skipped(lab, monkeypatch, capfd):
    monkeypatch.setattr(pairs, "find_spec", lambda _: None)
    pairs.run_pairs(lab, [f"triangle-attention-{TOKENS}"], ["trifast-bf16"])
    assert "trifast is not installed" in capfd.readouterr().err
    assert not read_rows(lab.results.path("pairs"))


@pytest.mark.usefixtures("small")
def test_updates_count_with_the_pairs_that_they_are_added_to():
    for name, n in pairs.CASES.values():
        if name in ("triangle-multiplication", "transition"):
            setup = pairs.OPERATORS[name].setup(n, CPU)
            update = pairs.OPERATORS[name].truth(setup) - setup.z
            assert update.dtype == torch.float64
            assert float(update.abs().max()) > 0.1


def test_operators_are_tabulated_with_their_best_peers(tmp_path):
    times = {"triton-bf16": 1.0, "trifast-bf16": 2.0, "torch-bf16": 9.0, "triton-fp32": 4.0}
    Results(tmp_path).add(
        row(bench="pairs", case="triangle-attention-512", impl=impl, ms=ms)
        for impl, ms in times.items()
    )
    line = tables.pairs_table(tmp_path).splitlines()[2]
    assert "**1** | 2 (trifast) | 2.0x" in line
    assert "**4** | – | – |" in line


@pytest.mark.usefixtures("small")
def test_cases_and_implementations_are_selected_by_name(tmp_path):
    options = ["--device", "cpu", "--sampling", "0.01", "--out", str(tmp_path)]
    selected = ["--cases", f"transition-{TOKENS}", "--only", "torch-fp32"]
    assert command.main(["pairs", *selected, *options]) == 0
    (found,) = read_rows(tmp_path / "pairs.csv")
    assert (found.case, found.impl) == (f"transition-{TOKENS}", "torch-fp32")
