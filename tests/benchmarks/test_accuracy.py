"""Published errors and speeds, and the measurements beside them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from itertools import combinations

import pytest
from matplotlib.figure import Figure

from benchmarks.lab import accuracy
from benchmarks.lab.published import BENCHMARKS, LAMBENCH, MATPES, SPICE
from benchmarks.lab.schema import RESULTS, PairedRow, Results
from tests.support.benchmark_rows import row
from tests.support.figures import assert_nothing_is_clipped

MS = {"engine": 2.0, "exact": 50.0}


@pytest.fixture
def folder(tmp_path):
    """Results of the models that have published errors."""
    rows = [
        row(bench="matpes", case=case, impl=impl, ms=ms, atoms=int(case.split("-")[1]))
        for case in accuracy.CRYSTALS
        for impl, ms in MS.items()
    ]
    times = {"engine": 4.096, "warp": 40.96, "warp-compile": 12.288}
    rows += [row(bench="charged", case="4096", impl=i, ms=t, atoms=4096) for i, t in times.items()]
    rows += [
        PairedRow(
            **asdict(row(bench="cpu", case="matpes-192", impl=i, ms=t, atoms=192, gpu="CPU")),
            **kind,
        )
        for i, threads, t in (("cpu", 1, 38.4), ("cpu", 2, 19.2), ("matgl", 2, 192.0))
        for kind in [{"threads": threads, "precision": "float32", "ratio": 1.0}]
    ]
    Results(tmp_path).add(rows)
    return tmp_path


def cells_of(table, model):
    """Return the cells of the last row of a model, without its name."""
    return re.findall(rf"^\| {re.escape(model)} \| (.*) \|$", table, re.MULTILINE)[-1].split(" | ")


def test_measured_speeds_come_from_the_csv(folder):
    table = accuracy.accuracy_table(folder)
    error, published, here = cells_of(table, "AceFF-2.0")
    assert (error, published) == ("3.55", "9.82")
    assert here.startswith("**1** (TorchMD-NET, warp-compile: 3): a GPU, float32, random weights")
    error, published, here = cells_of(table, "TensorNet 2025.2")
    assert error.startswith("[none found](https://huggingface.co/")
    assert published == "–"
    assert "**0.488** (exact module: 12.2) for 4,096 atoms of NaCl" in here
    assert "**31.2** (exact module: 781) for 64 atoms of Si" in here
    assert "**100** (matgl: 1,000) for 192 atoms of water: CPU, 2 threads, float32" in here


def test_published_numbers_do_not_depend_on_ours(folder):
    here, committed = map(accuracy.accuracy_table, (folder, RESULTS))
    assert here != committed
    for table in (here, committed):
        for benchmark in BENCHMARKS:
            assert all(f"| {model.model} | " in table for model in benchmark.models)
        lines = table.splitlines()
        assert len([line for line in lines if line.startswith("| ")]) == 2 + sum(
            1 + len(benchmark.models) for benchmark in BENCHMARKS
        )
        assert sum("**" in line.rpartition(" | ")[2] for line in lines) == 2  # none was dropped


def test_nothing_is_tabulated_without_measurements(tmp_path):
    assert accuracy.accuracy_table(tmp_path) == ""


def test_times_are_converted_to_the_unit_of_their_benchmark():
    assert MATPES.speed_of(MATPES.models[5]) == pytest.approx(1960)
    assert LAMBENCH.speed_of(LAMBENCH.models[0]) == LAMBENCH.models[0].time
    fast = next(model for model in SPICE.models if model.model == "AceFF-1.1")
    assert SPICE.speed_of(fast) == pytest.approx(10.33e3 / 2224)


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_published_numbers_have_a_source_that_does_not_change(benchmark):
    """Addresses of repositories name a commit, and models occur once, in order of errors."""
    own = [model.source for model in benchmark.models if model.source]
    for address in (benchmark.address, benchmark.speed_address, *own):
        assert re.match(
            r"https://(github\.com/[^/]+/[^/]+/(blob|tree)/[0-9a-f]{40}/|hugging)", address
        )
    assert max(Counter(model.model for model in benchmark.models).values()) == 1
    errors = [model.error for model in benchmark.models if model.error is not None]
    assert errors == sorted(errors)
    assert min(errors) > 0


def test_the_figure_names_each_model_once_and_no_names_overlap():
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    accuracy.plot(axes)
    assert_nothing_is_clipped(figure)
    names = [text.get_text() for text in axes.texts]
    expected = [m.model for m in SPICE.models if m.time is not None]
    assert names == expected
    assert sum(len(line.get_xdata()) for line in axes.lines) == len(expected) >= 4
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))


def test_the_committed_figure_holds_every_model():
    drawn = (RESULTS / "accuracy.svg").read_text()
    assert all(f">{name}<" in drawn for name, _, _ in accuracy.points())
