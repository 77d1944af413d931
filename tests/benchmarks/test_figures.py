from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from benchmarks.lab import figures, tables
from benchmarks.lab.schema import RESULTS, Results, read_rows, with_bytes
from benchmarks.lab.selection import passed
from tests.support.benchmark_rows import row
from tests.support.figures import assert_nothing_is_clipped


def test_the_table_of_steps_is_drawn_from_the_csv(measured):
    table = tables.step_table(measured)
    assert (
        "| 21 | 10 | 1.5 (warp-graph) | **0.1** | 15.0x | 0.5 (peer 0.5) | 1e-07 (1e-07) |" in table
    )
    assert "| 65,536 | – | – | **20** | – | 0.5 | 1e-07 |" in table
    assert "a GPU, PyTorch 2.11, Triton 3.6, commit abc1234, 2026-01-02" in table


def test_all_tables(measured):
    text = tables.tables(measured)
    assert "| mean | | | | | 100.0x | 15.0x |" in text.replace("|  ", "| ")
    assert "| 21 | 0.1 | 0.25 | 0.150 |" in text


def test_charges_on_a_mesh_are_tabulated_but_not_drawn(tmp_path):
    cases = {"4096": 4.0, "pme-4096": 4.4}
    made = [row(bench="charged", case=case, ms=ms, atoms=4096) for case, ms in cases.items()]
    Results(tmp_path).add(made)
    table = tables.step_table(tmp_path, "charged")
    assert "| 4,096 | – | – | **4** |" in table
    assert "| pme-4096 | – | – | **4.4** |" in table
    times = passed(read_rows(tmp_path / "charged.csv"))
    assert list(figures.PARTS["charged"][1](times)) == ["4096"]


def test_gpus_are_not_compared_with_each_other(tmp_path):
    """The table has the GPU that was measured last, even if peers have rows of another alone."""
    names = {"triton-bf16": 3.0, "cuequivariance-bf16": 5.0, "torch-bf16": 4.0}
    made = [row(bench="pairs", case="update-512", impl=i, ms=ms) for i, ms in names.items()]
    newer = [replace(x, gpu="another GPU", ms_p50=x.ms_p50 / 2) for x in made[:2]]
    Results(tmp_path).add(made + newer)
    table = tables.pairs_table(tmp_path)
    assert "**1.5** | 2.5 (cuequivariance) | 1.7x" in table
    assert "another GPU, PyTorch" in table
    Results(tmp_path).add(made)
    assert "**3** | 4 (torch) | 1.3x" in tables.pairs_table(tmp_path)


def test_operators_are_tabulated_with_their_bandwidth(tmp_path):
    made = [
        row(bench="ops", case="compose-1024", impl=impl, ms=ms, atoms=1024)
        for impl, ms in (("triton", 1.0), ("torch", 3.0))
    ]
    made.append(replace(made[0], bench="bandwidth", case=with_bytes("compose-1024", 10**9)))
    copied = with_bytes("copy", 10**9)
    made.append(row(bench="bandwidth", case=copied, impl="torch", ms=0.5, atoms=0))
    Results(tmp_path).add(made)
    table = tables.operators_table(tmp_path)
    assert "| compose | 3.0x (50%) |" in table
    assert "2.00 TB/s" in table


def test_operators_are_held_against_a_copy_of_their_size(tmp_path):
    case = with_bytes("compose-1024", 10**9)
    rows = [("ops", "compose-1024", "triton", 1.0), ("ops", "compose-1024", "torch", 3.0)]
    rows += [("bandwidth", case, "triton", 1.0), ("bandwidth", case, "copy", 0.8)]
    rows.append(("bandwidth", with_bytes("copy", 10**9), "torch", 0.5))
    Results(tmp_path).add([row(bench=b, case=c, impl=i, ms=ms, atoms=1024) for b, c, i, ms in rows])
    assert "| compose | 3.0x (80%) |" in tables.operators_table(tmp_path)


def test_steps_through_openmm_are_compared_where_both_ran(tmp_path):
    times = {"engine": 0.3, "openmm-torch": 0.8, "openmm-reference": 0.4, "openmm-torchmd-net": 4.0}
    made = [row(bench="openmm", case="21", impl=i, ms=ms, atoms=21) for i, ms in times.items()]
    Results(tmp_path).add(made)
    assert "| 21 | 0.3 | 0.8 | 0.4 | 4 | – | 5.0x | 54 and 10.8 |" in tables.openmm_table(tmp_path)
    peer = replace(made[0], impl="openmm-torchmd-net-reference", ms_p50=2.0)
    Results(tmp_path).add([peer])
    assert "| 4 | 2 | 5.0x | 108 and 21.6 |" in tables.openmm_table(tmp_path)


def test_divided_boxes_are_compared_with_whole_ones(tmp_path):
    times = {"ranks-1": 300.0, "ranks-1-model": 290.0, "ranks-4": 80.0, "ranks-4-gpus-1": 400.0}
    case = "strong-random-1000000"
    made = [row(bench="lammps", case=case, impl=i, ms=t, atoms=10**6) for i, t in times.items()]
    made.append(row(bench="lammps", case="check-random-4096", impl="ranks-1", ms=2.0, atoms=4096))
    Results(tmp_path).add(made)
    table = tables.lammps_table(tmp_path)
    assert "| model | atoms | engine alone | one GPU | four GPUs | speed-up |" in table
    assert "| F = 128 | 1,000,000 | – | 300 | 80 | 3.75 | 0.5, 0.5 |" in table
    assert "4,096" not in table
    assert figures.draw(tmp_path) == [tmp_path / "lammps.svg"]


def test_boxes_that_grow_with_the_number_of_gpus(tmp_path):
    times = {"250000": ("ranks-1", 90.0), "500000": ("ranks-2", 100.0)}
    for atoms, (impl, ms) in times.items():
        case = f"weak-random-{atoms}"
        Results(tmp_path).add([row(bench="lammps", case=case, impl=impl, ms=ms, atoms=int(atoms))])
    line = "| F = 128 | 250,000 | 90 | 100 | 90% |"
    assert line in tables.lammps_weak_table(tmp_path)
    assert tables.lammps_weak_table(tmp_path / "empty") == ""


def test_figures_are_drawn_from_the_csv_and_reproducible(measured):
    (path,) = figures.draw(measured)
    drawn = path.read_text()
    assert path.name == "step.svg"
    assert "TorchMD-NET, Warp + CUDA graph" in drawn
    figures.draw(measured)
    assert path.read_text() == drawn


def test_convolutions_are_drawn_in_their_largest_size(tmp_path):
    rows = [
        row(bench="convolution", case=f"layer-{layer}-{n}", impl=impl, ms=n * ms, atoms=n)
        for layer in (1, 2)
        for n in (10000, 2000)
        for impl, ms in (("triton-graph", 1.0), ("luna-graph", 3.0), ("luna", 0.1))
    ]
    Results(tmp_path).add(rows)
    (path,) = figures.draw(tmp_path)
    drawn = path.read_text()
    assert path.name == "convolution.svg"
    assert all(text in drawn for text in ("layer-1-10000", "layer-2-10000", "best peer"))
    assert "layer-1-2000" not in drawn


def test_docking_is_drawn(tmp_path):
    times = {"accelerated": 1.0, "reference": 9.0}
    Results(tmp_path).add([row(bench="docking", case="a", impl=i, ms=t) for i, t in times.items()])
    (path,) = figures.draw(tmp_path)
    drawn = path.read_text()
    assert "as shipped" in drawn
    assert "compiled" not in drawn


def test_legends_fit_below_the_axes(tmp_path, monkeypatch):
    """The committed results have long names."""
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *_, **__: assert_nothing_is_clipped(figure)
    )
    for path in RESULTS.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    drawn = {*figures.draw(tmp_path), figures.draw_published(tmp_path)}
    assert {path.name for path in drawn} == {path.name for path in RESULTS.glob("*.svg")}


def test_nothing_is_drawn_from_nothing(tmp_path):
    assert figures.draw(tmp_path) == []
    assert tables.tables(tmp_path) == ""


def test_training_in_a_graph_is_compared_with_the_best_without_one(tmp_path):
    times = {"torch": 60.0, "warp": 70.0, "warp-captured": 12.0}
    times |= {"ours-eager": 140.0, "ours-captured": 40.0, "exact": 90.0, "exact-captured": 11.0}
    made = [row(bench="training", case="a", impl=i, ms=ms, atoms=21) for i, ms in times.items()]
    Results(tmp_path).add([made[0], made[3]])
    assert tables.training_table(tmp_path) == ""
    Results(tmp_path).add(made)
    assert "| a | 60 | 70 | 12 | 140 | 40 | 90 | 11 | 5.0x |" in tables.training_table(tmp_path)
