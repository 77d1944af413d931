"""Costs: how they are fitted, stored and found, and how backends are chosen by them."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.engine.costs import fitted
from mlff_triton._common import cache
from mlff_triton.checkpoints import save_model
from mlff_triton.cli import main as cli
from mlff_triton.engine import calibration, costs, dispatch
from mlff_triton.engine.calibration import (
    Point,
    droplet,
    fastest_by_size,
    fit,
    measure_backend,
    step_time,
)
from mlff_triton.engine.costs import (
    Cost,
    Costs,
    Target,
    architecture_of,
    cache_file,
    keep,
    known,
    read,
    typical_edges,
)
from mlff_triton.engine.dispatch import TYPICAL_ATOMS, choose, explain, rank
from mlff_triton.engine.engine import Engine
from mlff_triton.errors import BackendError, InputError, OutputError
from mlff_triton.model.config import TensorNet2Config, TensorNetConfig
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.model.tensornet2 import TensorNet2
from mlff_triton.neighbors.neighbor_list import neighbor_list
from tests.support.charged import charged_model

CPU, GPU = torch.device("cpu"), torch.device("cuda")  # no test runs on it
CONFIG = TensorNetConfig(elements=(1, 8), hidden_channels=8, num_layers=1, num_rbf=4)
HERE = Target.of(CONFIG, CPU, torch.float32)
CHEAP, DEAR = Cost(1.0, 0.0, 1e-3, 0.1), Cost(2.0, 0.0, 2e-3, 0.2)
TORCH_FIRST = Costs(HERE, "2026-01-02", {"cpu": DEAR, "exact": DEAR, "torch": CHEAP})
LARGE_ONES = Costs(
    HERE,
    "2026-01-02",
    {"cpu": Cost(30, 0.1, 0, 0), "exact": Cost(1, 0.1, 0, 0), "torch": Cost(9, 0.01, 0, 0)},
)


def model_of(**changes: object) -> TensorNet:
    return TensorNet(replace(CONFIG, **changes))


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # set by tests of kernels
    monkeypatch.setattr(dispatch, "has_loops", lambda: True)


@pytest.fixture
def device_named(monkeypatch):
    """Return a function that gives the GPU a name."""

    def rename(name):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: name)

    return rename


SIZES = (4, 9, 20)
quick_time = partial(step_time, seconds=0.01)


@pytest.fixture
def measured_by(monkeypatch):
    """Return a function that chooses how ``calibrate`` measures a step, and at which sizes."""

    def choose_time(time=quick_time, sizes=SIZES):
        quick = partial(measure_backend, sizes=sizes, time=time)
        monkeypatch.setattr(calibration, "measure_backend", quick)

    return choose_time


@pytest.fixture
def run(tmp_path, capsys):
    """Return a function that runs calibrate on a tiny model, and returns exit code and outputs."""
    path = tmp_path / "tiny.safetensors"
    save_model(model_of(), path, "A random model for tests.")

    def command(*arguments):
        with pytest.raises(SystemExit) as exit_:
            cli.main(["calibrate", "--model", str(path), "--device", "cpu", *arguments])
        shown = capsys.readouterr()
        return exit_.value.code, shown.out, shown.err

    return command


def points_of(cost: Cost) -> list[Point]:
    sizes = [(9, 60), (100, 3000), (2000, 100_000), (50_000, 2_000_000)]
    return [Point("exact", n, e, cost.ms(n, e)) for n, e in sizes]


@pytest.mark.parametrize(
    "numbers", [(0.1, 1e-4, 5e-6), (10, 0, 1e-3), (0, 1e-3, 0), (3, 0, 0), (0, 0, 1e-5)]
)
def test_fit_finds_the_costs_behind_times(numbers):
    cost = fit(points_of(Cost(*numbers, misfit=0)))
    assert (cost.launch, cost.per_atom, cost.per_edge) == pytest.approx(numbers, abs=1e-12)
    assert cost.misfit == pytest.approx(0, abs=1e-9)


def test_no_cost_is_negative():
    falling = [Point("exact", n, 50 * n, 1e3 / n) for n in (10, 100, 1000)]
    cost = fit(falling)
    assert min(cost.launch, cost.per_atom, cost.per_edge) >= 0
    assert 0 < cost.misfit == max(abs(cost.ms(p.atoms, p.edges) / p.ms - 1) for p in falling)


@pytest.mark.parametrize("count", [1, 2])
def test_few_points_are_fitted_too(count):
    points = points_of(CHEAP)[:count]
    cost = fit(points)
    assert [cost.ms(p.atoms, p.edges) for p in points] == pytest.approx([p.ms for p in points])


def test_typical_edges_are_those_of_water():
    assert [typical_edges(n, 5.0) for n in (1, 2, 10)] == [0, 2, 90]
    assert typical_edges(1000, 5.0) / 1000 == pytest.approx(54, rel=0.05)  # benchmarks: 1,024 atoms


def test_sizes_at_which_the_fastest_changes():
    assert fastest_by_size(LARGE_ONES.backends, 5.0, 1000) == [(1, "exact"), (89, "torch")]
    assert fastest_by_size(LARGE_ONES.backends, 5.0, 50) == [(1, "exact")]
    assert fastest_by_size({"exact": CHEAP}, 5.0, 1000) == [(1, "exact")]


def test_shipped_costs_are_those_of_the_committed_results():
    made = fitted()
    assert [replace(c, backends={}) for c in made] == [
        replace(c, backends={}) for c in costs.shipped()
    ]
    for new, old in zip(made, costs.shipped(), strict=True):
        assert list(new.backends) == list(old.backends)
        for backend, cost in new.backends.items():
            assert vars(cost) == pytest.approx(vars(old.backends[backend]), rel=1e-3)


def test_what_is_kept_is_found_again():
    other = replace(TORCH_FIRST, target=replace(HERE, channels=64))
    for one in (other, LARGE_ONES, TORCH_FIRST):
        assert keep(one) == cache_file()
    assert known(HERE) == TORCH_FIRST
    assert known(other.target) == other
    assert len(read(cache_file())) == 2
    assert [path.name for path in cache_file().parent.iterdir()] == ["costs.csv"]


@pytest.mark.parametrize(
    "change",
    [
        {"device": "CPU of 1989"},
        {"architecture": "TensorNet2"},
        {"channels": 16},
        {"layers": 2},
        {"dtype": "float64"},
        {"software": "torch 1.0, triton none, mlff_triton 0.0"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_costs_of_another_target_are_not_taken(change):
    keep(replace(TORCH_FIRST, target=replace(HERE, **change)))
    assert known(HERE) is None
    assert Engine(model_of(), "cpu").backend == "cpu"


def test_the_engine_takes_what_is_fastest_here():
    keep(TORCH_FIRST)
    assert Engine(model_of(), "cpu").backend == "torch"
    assert Engine(model_of(), "cpu", backend="exact").backend == "exact"


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ([{}], "torch"),
        ([{}, {"cutoff_upper": 4.0}], "torch"),
        ([{"hidden_channels": 16}], "cpu"),
        ([{}, {"num_layers": 2}], "cpu"),
        ([{"num_layers": 0}], "exact"),
    ],
    ids=["measured", "ensemble", "other channels", "ensemble with another", "not served"],
)
def test_costs_serve_models_of_their_shape(changes, chosen):
    keep(TORCH_FIRST)
    models = [model_of(**change) for change in changes]
    assert choose("auto", models, CPU, torch.float32) == chosen


@pytest.mark.parametrize(
    ("n_atoms", "order"),
    [(20, ["exact", "torch", "cpu"]), (200, ["torch", "exact", "cpu"])],
)
def test_the_size_decides(n_atoms, order):
    keep(LARGE_ONES)
    ranked = rank([model_of()], CPU, torch.float32, n_atoms)
    assert [c.backend for c in ranked if c.ms is not None] == order
    assert [c.ms for c in ranked[2:]] == sorted(c.ms for c in ranked[2:])


def test_edges_and_members_count():
    keep(TORCH_FIRST)
    models = [model_of(), model_of()]
    times = {c.backend: c.ms for c in rank(models, CPU, torch.float32, 10, n_edges=500)}
    assert times == {
        "triton-graph": None,
        "triton": None,
        "torch": 3.0,
        "cpu": 6.0,
        "exact": 6.0,
    }


def test_backends_without_costs_keep_their_positions():
    pytest.importorskip("triton")
    model = model_of(hidden_channels=32)
    target = Target.of(model.config, GPU, torch.float32)
    for known_ones, expected in (
        ({}, ["triton-graph", "triton", "cpu", "exact", "torch"]),
        ({"exact": CHEAP}, ["triton-graph", "triton", "cpu", "exact", "torch"]),
        (
            {"triton-graph": DEAR, "exact": CHEAP},
            ["exact", "triton", "cpu", "triton-graph", "torch"],
        ),
        (
            {"triton-graph": CHEAP, "exact": DEAR},
            ["triton-graph", "triton", "cpu", "exact", "torch"],
        ),
    ):
        keep(Costs(target, "2026-01-02", known_ones))
        assert [c.backend for c in rank([model], GPU, torch.float32)] == expected


def test_explain_without_times():
    lines = explain(model_of()).splitlines()
    assert [line.split()[1] for line in lines[:5]] == ["no:", "no:", "taken", "slower", "slower"]
    (last,) = lines[5:]
    assert last == (
        "no times: TensorNet, F = 8, layers = 1, float32 has not been measured on this "
        f"{HERE.device}: run mlff-triton calibrate"
    )


def test_explain_gives_times_and_where_they_are_from():
    keep(LARGE_ONES)
    *lines, source, size = explain(model_of(), n_atoms=1000).splitlines()
    assert [line.split(None, 1) for line in lines[2:]] == [
        ["torch", "taken, 19 ms"],
        ["exact", "slower, 101 ms"],
        ["cpu", "slower, 130 ms"],
    ]
    assert source == (
        f"measured on {HERE.device}, 2026-01-02, by mlff-triton calibrate: {HERE.software}"
    )
    assert size == "times are those of 1000 atoms at the density of water"


def test_explain_says_when_another_is_faster_at_this_size():
    keep(LARGE_ONES)
    lines = explain(model_of(), n_atoms=10).splitlines()
    assert lines[2] == "exact         faster at this size, 2 ms: ask for backend='exact'"
    assert lines[3] == "torch         taken, 9.1 ms"
    assert choose("auto", [model_of()], CPU, torch.float32) == "torch"
    assert TYPICAL_ATOMS > 89


QUICK_LOOPS = Costs(HERE, "2026-01-02", {"cpu": Cost(10, 0, 0, 0), "exact": Cost(40, 0, 0, 0)})


@pytest.mark.parametrize(("calls", "taken"), [(1, "exact"), (199, "exact"), (201, "cpu")])
def test_compiling_pays_after_some_calls(monkeypatch, calls, taken):
    """Six seconds are lost at first, and 30 ms are won per call."""
    monkeypatch.setattr(dispatch, "has_loops", lambda: False)
    keep(QUICK_LOOPS)
    assert choose("auto", [model_of()], CPU, torch.float32, calls) == taken
    verdicts = dict(
        line.split(maxsplit=1) for line in explain(model_of(), calls=calls).splitlines()
    )
    loops, exact = "10 ms, after 6 s to compile it once", "40 ms"
    rank_of = {"cpu": ("taken", "slower"), "exact": ("slower", "taken")}[taken]
    assert (verdicts["cpu"], verdicts["exact"]) == (
        f"{rank_of[0]}, {loops}",
        f"{rank_of[1]}, {exact}",
    )


def test_compiled_loops_are_ranked_by_their_times_alone():
    keep(QUICK_LOOPS)
    assert choose("auto", [model_of()], CPU, torch.float32, 1) == "cpu"
    assert "taken, 10 ms\n" in explain(model_of(), calls=1)


def test_shipped_costs_hold_on_their_gpu_alone(device_named):
    pytest.importorskip("triton")
    model = model_of(hidden_channels=128, num_layers=2)
    device_named("NVIDIA H200")
    text = explain(model, GPU)
    assert "triton-graph  taken, 0.4" in text
    assert "exact         slower, 2" in text
    assert "measured on NVIDIA H200, 2026-" in text
    assert ", shipped: torch 2." in text
    assert "no times: " in explain(model, GPU, torch.float64)
    config = TensorNet2Config((1, 8), hidden_channels=128, coulomb_cutoff=10.0)
    device_named("NVIDIA H200")
    text = explain(TensorNet2(config), GPU)
    assert "triton-graph  taken, 1." in text
    assert "exact         slower, 3" in text
    device_named("NVIDIA A100")
    text = explain(model, GPU)
    assert "triton-graph  taken\n" in text
    assert text.endswith(
        "measured on NVIDIA H200, not on this NVIDIA A100: run mlff-triton calibrate"
    )


def test_a_machines_own_costs_come_before_shipped_ones(device_named):
    pytest.importorskip("triton")
    model = model_of(hidden_channels=128, num_layers=2)
    device_named("NVIDIA H200")
    mine = Costs(
        Target.of(model.config, GPU, torch.float32),
        "2026-01-02",
        {"exact": CHEAP, "triton-graph": DEAR},
    )
    keep(mine)
    assert known(mine.target) == mine
    assert choose("auto", [model], GPU, torch.float32) == "exact"


def test_a_gpu_that_is_not_there_has_no_costs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert "not been measured on this absent GPU" in explain(model_of(), "cuda:3")


HEADER = ",".join(costs.COLUMNS)
DAMAGE = {
    "empty": b"",
    "noise": bytes(range(256)),
    "other columns": b"step,gpu\n21,none\n",
    "half a row": f"{HEADER}\nCPU,TensorNet,8,1\n".encode(),
    "too long a row": f"{HEADER}\nCPU,TensorNet,8,1,float32,x,today,exact,1,1,1,1,1\n".encode(),
    "no number": f"{HEADER}\nCPU,TensorNet,8,1,float32,x,today,exact,1,fast,1,1\n".encode(),
    "negative": f"{HEADER}\nCPU,TensorNet,8,1,float32,x,today,exact,1,-1,1,1\n".encode(),
    "NaN": f"{HEADER}\nCPU,TensorNet,8,1,float32,x,today,exact,1,nan,1,1\n".encode(),
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_cache_is_ignored_with_a_warning(content):
    cache_file().parent.mkdir()
    cache_file().write_bytes(content)
    with pytest.warns(
        UserWarning, match=r"costs\.csv is not a file of costs .* is ignored"
    ) as caught:
        assert Engine(model_of(), "cpu").backend == "cpu"
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="is ignored"):
        keep(TORCH_FIRST)
    assert read(cache_file()) == [TORCH_FIRST]


def test_a_cache_that_cannot_be_read_is_ignored():
    cache_file().mkdir(parents=True)
    with pytest.warns(UserWarning, match="directory.* is ignored"):
        assert known(HERE) is None


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "file" / "below"))
    with pytest.raises(OutputError, match="cannot write"):
        keep(TORCH_FIRST)


def test_the_cache_lies_where_caches_do(monkeypatch):
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", os.sep + "caches")
    assert cache_file() == Path("/caches/mlff_triton/costs.csv")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_file() == Path.home() / ".cache" / "mlff_triton" / "costs.csv"


def test_users_without_a_home_are_told_so(monkeypatch):
    monkeypatch.delenv(cache.FOLDER)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as Python does without a home
    assert costs.known(TORCH_FIRST.target) is None
    with pytest.raises(OutputError, match=r"no home folder .*: set MLFF_TRITON_CACHE to a folder"):
        keep(TORCH_FIRST)


def test_an_interrupted_write_leaves_the_old_file(monkeypatch):
    def interrupt(*_arguments):
        raise KeyboardInterrupt

    keep(TORCH_FIRST)
    before = cache_file().read_bytes()
    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        keep(LARGE_ONES)
    assert cache_file().read_bytes() == before
    assert [path.name for path in cache_file().parent.iterdir()] == ["costs.csv"]


@pytest.mark.parametrize("n_atoms", [1, 2, 63, 64, 65])
def test_droplets_are_as_dense_as_water(n_atoms):
    batch = droplet(model_of(), n_atoms)
    assert len(batch.numbers) == n_atoms
    assert set(batch.numbers) <= {1, 8}
    assert len(neighbor_list(batch.positions, 1.5).senders) == 0
    assert len(neighbor_list(batch.positions, 5.0).senders) <= typical_edges(n_atoms, 5.0)


def test_larger_systems_follow_while_steps_are_quick():
    arguments = model_of(), CPU, "float64", "exact"
    points = list(measure_backend(*arguments, sizes=SIZES, time=quick_time))
    assert [point.atoms for point in points] == [4, 9, 20]
    assert points[0].edges == 12
    assert all(point.backend == "exact" and point.ms > 0 for point in points)
    (only,) = measure_backend(*arguments, sizes=SIZES, slow=0.0, time=quick_time)
    assert only.atoms == 4


def test_pairs_are_counted_and_the_exact_module_does_not_list_too_many():
    model = charged_model(hidden_channels=8)
    measured = partial(measure_backend, model, CPU, "float32", time=lambda *_: 1.0)
    sizes = (4, 5000)
    assert [p.edges for p in measured("torch", sizes=sizes)] == [12, 5000 * 4999]
    assert [p.edges for p in measured("exact", sizes=sizes)] == [12]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "TensorNet2"),
        ({"coulomb_cutoff": 5.0}, "TensorNet2 with Coulomb cutoff"),
        ({"coulomb": False}, "TensorNet2 without Coulomb energy"),
    ],
)
def test_costs_tell_architectures_apart(changes, name):
    assert architecture_of(charged_model(**changes).config) == name
    assert architecture_of(CONFIG) == "TensorNet"


@pytest.mark.parametrize("error", [BackendError, torch.OutOfMemoryError])
def test_larger_systems_do_not_follow_without_memory(error):
    def time(_engine, batch):
        if len(batch.numbers) > 4:
            raise error("no memory")
        return 1.0

    points = list(measure_backend(model_of(), CPU, "float32", "exact", sizes=SIZES, time=time))
    assert points == [Point("exact", 4, 12, 1.0)]


def test_calibrate_measures_and_the_engine_follows(run, measured_by):
    times = {"cpu": 3.0, "exact": 2.0, "torch": 1.0}
    measured_by(lambda engine, batch: times[engine.backend] * len(batch.numbers))
    code, out, err = run()
    assert (code, err) == (0, "")
    for expected in (HERE.device, "atoms", "edges", "worst misfit", "fastest: torch at every size"):
        assert expected in out
    assert out.endswith(f"wrote {cache_file()}\n")
    (kept,) = read(cache_file())
    assert kept.target == HERE
    assert {name: cost.per_atom for name, cost in kept.backends.items()} == times
    assert Engine(model_of(), "cpu").backend == "torch"


def test_calibrate_with_real_times(run, measured_by, tmp_path, monkeypatch):
    monkeypatch.undo()  # so that the cache of this session has compiled loops
    measured_by()
    code, _, err = run("--dtype", "float64", "--out", str(tmp_path / "new" / "mine.csv"))
    assert (code, err) == (0, "")
    (kept,) = read(tmp_path / "new" / "mine.csv")
    assert kept.target == replace(HERE, dtype="float64")
    assert list(kept.backends) == ["cpu", "exact", "torch"]
    assert all(cost.ms(20, 200) > 0 for cost in kept.backends.values())
    assert not cache_file().exists()


def test_calibrate_tells_sizes_apart(run, measured_by):
    def time(engine, batch):
        return LARGE_ONES.backends[engine.backend].ms(len(batch.numbers), 0)

    measured_by(time, sizes=(10, 50, 200))
    assert "fastest: exact below 89 atoms, torch above\n" in run()[1]


def test_an_interrupted_calibration_keeps_nothing(run, measured_by):
    def time(engine, _batch):
        if engine.backend == "torch":
            raise KeyboardInterrupt
        return 1.0

    measured_by(time)
    assert run()[0] == 130
    assert not cache_file().exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "abacus"), "'abacus' is unknown"),
        (("--dtype", "float16"), "use one of float32, float64"),
        (("--model", "absent"), "there is no model 'absent'"),
    ],
)
def test_mistakes_in_calibrate_take_one_line(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_no_memory_at_all_is_an_error(run, measured_by):
    def time(_engine, _batch):
        raise torch.OutOfMemoryError

    measured_by(time)
    code, _, err = run()
    assert code == 2
    assert "too small for any step" in err


def test_files_of_other_kinds_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="its columns are"):
        read(tmp_path / "x.csv")
