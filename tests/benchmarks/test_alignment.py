"""The alignment benchmark: cases, checks, methods, results, tables and figures."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.bio import alignment, alignment_methods
from benchmarks.bio.alignment_cases import AFFINE, CASES, PROTEIN, AlignmentCase, build
from benchmarks.bio.alignment_methods import CPU, METHODS, Answer, Method, Work
from benchmarks.lab import figures, tables
from benchmarks.lab.lab import Budget, Lab
from benchmarks.lab.schema import AlignmentRow, Results, columns_of, read_rows
from mlff_triton._common.timing import Environment, Timing
from mlff_triton.errors import InputError

WHERE = Environment("a GPU", "2.11", "3.6", "abc1234", "2026-01-02")
COLUMNS = (
    "bench,case,impl,pairing,pairs,rows,columns,device,version,gpu,torch,triton,commit,date,"
    "ms_p20,ms_p50,ms_p80,gcups,peak_mib,checked,wrong"
)


@pytest.fixture
def lab(tmp_path) -> Lab:
    return Lab(CPU, WHERE, Results(tmp_path), Budget(sampling=0.01))


@pytest.fixture
def tiny(monkeypatch) -> list[str]:
    """Add cases of each kind with few short sequences, and return their names."""
    kinds = {(c.scheme, c.mode, c.pairing, c.similar, c.traceback): c for c in CASES.values()}
    made = [shrunk(case) for case in kinds.values()]
    for case in made:
        monkeypatch.setitem(CASES, case.name, case)
    return [case.name for case in made]


def shrunk(case: AlignmentCase) -> AlignmentCase:
    shortest = 5 if case.shortest < case.longest else 12
    return replace(case, name=f"tiny-{case.name}", count=3, shortest=shortest, longest=12)


def row(case: str, impl: str, ms: float | None = 1.0, gcups: float | None = 1.0, **changes):
    times = (None,) * 3 if ms is None else (0.9 * ms, ms, 1.1 * ms)
    shape = changes.pop("pairing", "all"), changes.pop("pairs", 1024), 512, 512
    where = "a GPU", "a package 1.2", "a GPU", "2.11", "3.6", "abc1234", "2026-01-02"
    wrong = 0 if ms else 3
    return AlignmentRow("alignment", case, impl, *shape, *where, *times, gcups, 512.0, 256, wrong)


def gotoh(a: str, b: str, scores, gap_open: int, gap_extend: int) -> int:
    """Compute the global score of two strings by the definition."""
    never = -(10**9)
    best = [0, *(-gap_open - k * gap_extend for k in range(len(b)))]
    insertion = [never] * len(best)
    for i, x in enumerate(a):
        diagonal, best[0], deletion = best[0], -gap_open - i * gap_extend, never
        for j, y in enumerate(b, start=1):
            insertion[j] = max(best[j] - gap_open, insertion[j] - gap_extend)
            deletion = max(best[j - 1] - gap_open, deletion - gap_extend)
            reached = max(diagonal + scores(x, y), insertion[j], deletion)
            diagonal, best[j] = best[j], reached
    return best[-1]


def distance(a: str, b: str) -> int:
    return -gotoh(a, b, lambda x, y: -(x != y), 1, 1)


# Cases


def test_cases_are_those_of_the_targets():
    for length in (128, 512, 1024):
        for name in (f"dna-{length}", f"edit-{length}"):
            assert CASES[name].n_pairs >= 2**18
    published = [case for case in CASES.values() if case.published]
    assert len(published) == 16
    assert {(case.pairing, case.scheme) for case in published} == {("zip", AFFINE)}
    assert CASES["dna-cigar-random-1000"].n_pairs == 10_000
    assert CASES["dna-two-100000"].n_pairs == 1


@pytest.mark.parametrize("case", [*map(shrunk, CASES.values())], ids=lambda case: case.name)
def test_sequences_are_those_of_the_case(case):
    problem = build(case, 1)
    for side, texts in zip((problem.queries, problem.targets), problem.texts, strict=True):
        assert list(map(len, texts)) == side.lengths.tolist()
        assert set("".join(texts)) <= set(case.scheme.letters)
        if not case.similar:
            assert case.shortest <= min(side.lengths) <= max(side.lengths) <= case.longest
    everything = np.arange(case.n_pairs)
    assert sorted(problem.some) == everything.tolist()
    pairs = problem.on(CPU)
    codes = {letter: k for k, letter in enumerate(case.scheme.scoring.letters)}
    for k, texts in enumerate(problem.texts_of(everything)):
        for text, start, length in zip(texts, pairs[1::2], pairs[2::2], strict=True):
            found = pairs.letters[start[k] : start[k] + length[k]].tolist()
            assert found == [codes[letter] for letter in text]
    cells = sum(len(a) * len(b) for a, b in problem.texts_of(everything))
    assert problem.cells(everything) == cells


def test_sequences_depend_on_the_seed_alone():
    case = shrunk(CASES["dna-512"])
    texts = []
    for seed in (1, 1, 2):
        build.cache_clear()
        texts.append(build(case, seed).texts)
    assert texts[0] == texts[1] != texts[2]


def test_similar_sequences_differ_in_a_tenth_of_their_bases():
    case = replace(CASES["dna-cigar-similar-1000"], count=3, shortest=400, longest=400)
    for a, b in zip(*build(case, 1).texts, strict=True):
        assert 20 < distance(a, b) < 60


# The gate


def test_all_available_methods_are_right(lab, tiny, capfd):
    alignment.run_alignment(lab, tiny, list(METHODS), 1)
    rows = read_rows(lab.results.path("alignment"))
    assert {r.gate for r in rows} == {"pass"}
    assert {"align", "torch-rows", "torch-cells"} <= {r.impl for r in rows}
    assert {r.case for r in rows if r.impl == "align"} == set(tiny)
    for r in rows:
        assert r.checked == r.pairs in (3, 9)
        assert r.gcups == pytest.approx(r.pairs * 144e-6 / r.ms_p50, rel=2e-3) or "m" in r.case
    shown = capfd.readouterr()
    assert "--seed 1" in shown.out
    assert "alignment kernel: skipped, it needs a GPU" in shown.err


def test_without_a_gpu_large_cases_are_refused_in_one_line(lab, capfd):
    alignment.run_alignment(lab, ["dna-512", "dna-1024"], ["align"], 1)
    assert capfd.readouterr().err == "alignment: 2 cases skipped, they need a GPU\n"
    assert not read_rows(lab.results.path("alignment"))


def test_nothing_is_begun_when_the_time_is_up(lab, tiny, capfd):
    lab.budget.total = 0
    alignment.run_alignment(lab, tiny[:2], ["align"], 1)
    assert "skipped, the time is up" in capfd.readouterr().err
    assert not read_rows(lab.results.path("alignment"))


@pytest.mark.parametrize("first_wrong", [0, 1])
def test_wrong_scores_get_no_time(lab, first_wrong):
    calls = itertools.count()

    def prepare(problem, device):
        right = alignment_methods.from_strings(problem, device)

        def read(result):
            scores = right.read(result).scores
            scores[0] += next(calls) >= first_wrong
            return Answer(scores)

        return Work(right.step, read)

    method = Method("wrong", "mlff-triton", prepare, lambda _case: True)
    alignment.run_one(lab, build(shrunk(CASES["dna-512"]), 1), method)
    (found,) = read_rows(lab.results.path("alignment"))
    assert (found.gate, found.ms_p50, found.gcups, found.wrong) == ("fail", None, None, 1)


@pytest.mark.parametrize("problem", ["missing scores", "an error"])
def test_what_breaks_gets_no_time_and_the_run_goes_on(lab, capfd, problem):
    def prepare(_problem, _device):
        if problem == "an error":
            raise InputError(problem)
        return Work(lambda: None, lambda _result: Answer(np.zeros(1, np.int64)))

    method = Method("broken", "mlff-triton", prepare, lambda _case: True)
    alignment.run_one(lab, build(shrunk(CASES["dna-512"]), 1), method)
    (found,) = read_rows(lab.results.path("alignment"))
    assert (found.gate, found.checked) == ("fail", 0)
    assert "alignment tiny-dna-512 broken: " in capfd.readouterr().err


@pytest.mark.parametrize("name", ["dna-semiglobal-512", "dna-local-512", "protein-350", "edit-512"])
def test_the_truth_is_the_same_without_parasail(monkeypatch, name):
    pytest.importorskip("parasail")
    problem = build(shrunk(CASES[name]), 1)
    expected = alignment.truth(problem, CPU)
    alignment.truth.cache_clear()
    monkeypatch.setattr(alignment, "find_spec", lambda _name: None)
    np.testing.assert_array_equal(alignment.truth(problem, CPU), expected)


@pytest.mark.parametrize(
    ("cigar", "score"),
    [
        ("2=1X1=1I", 2 * 2 - 3 + 2 - 5),
        ("2=2I1D1I1D", 2 * 2 - 7 - 5 - 5 - 5),
        ("2=1X1=", None),  # a base is left
        ("3=1=1I", None),  # G is not C
        ("2=1X1=1I1D", None),  # too many deletions
        ("1=1X1X1=1I", None),  # C is C
    ],
)
def test_cigar_strings_are_scored_again(cigar, score):
    found = alignment.rescored(cigar, "ACGTA", "ACCT", AFFINE)
    assert np.isnan(found) if score is None else found == score


# Methods


def test_slow_calls_are_not_repeated(lab, monkeypatch):
    problem = build(shrunk(CASES["batch-32-32"]), 1)
    calls = itertools.count()
    right = alignment_methods.cell_by_cell(problem, CPU)

    def step():
        next(calls)
        return right.step()

    clock = itertools.count()
    monkeypatch.setattr(alignment.time, "perf_counter", lambda: 3.0 * next(clock))
    method = replace(METHODS["torch-cells"], prepare=lambda *_: Work(step, right.read))
    alignment.run_one(lab, problem, method)
    (found,) = read_rows(lab.results.path("alignment"))
    assert (found.ms_p20, found.ms_p50, found.ms_p80) == (3000.0, 3000.0, 3000.0)
    assert next(calls) == 1


def test_speed_is_that_of_the_median(lab, monkeypatch):
    monkeypatch.setattr(alignment, "measure", lambda *_, **__: Timing(1.0, 2.0, 3.0, None))
    alignment.run_one(lab, build(shrunk(CASES["dna-512"]), 1), METHODS["align"])
    (found,) = read_rows(lab.results.path("alignment"))
    assert (found.pairs, found.rows, found.columns, found.pairing) == (9, 12, 12, "all")
    assert found.gcups == pytest.approx(9 * 144 / 2e-3 / 1e9, rel=1e-3)
    assert found.version.startswith("mlff-triton ")


def test_peers_on_the_cpu_begin_with_checked_pairs():
    problem = build(shrunk(CASES["dna-512"]), 1)
    for threads in (1, 4):
        some = alignment_methods.some_pairs(problem, threads, cells_per_call=144)
        assert some.tolist() == problem.some[:threads].tolist()
    pytest.importorskip("parasail")
    work = alignment_methods.parasail(4, problem, CPU, cells_per_call=144)
    assert alignment.check(problem, work, work.read(work.step()), CPU) == (4, 0)


@pytest.mark.parametrize("takes_out", [True, False])
@pytest.mark.parametrize("name", ["dna-linear-512", "protein-350", "edit-512", "dna-mixed-500"])
def test_stringzillas_gets_the_same_scores(monkeypatch, name, takes_out):
    problem = build(shrunk(CASES[name]), 1)
    strings, peer = ModuleType("stringzilla"), ModuleType("stringzillas")
    strings.Strs = list
    peer.to_device, peer.DeviceScope = list, lambda gpu_device: "scope"  # noqa: ARG005

    class Engine:
        def __init__(self, *classes_and_costs, capabilities, **gaps):
            assert capabilities == "scope"
            self.given, self.gaps = classes_and_costs, gaps

        def __call__(self, queries, targets, *, device, out=None):
            assert device == "scope"
            if out is not None and not takes_out:
                raise ValueError("memory mismatch")
            return np.array([[self.of(a, b) for b in targets] for a in queries])

        def of(self, a: str, b: str) -> int:
            classes, costs = self.given
            codes = ([classes[ord(x)] for x in text] for text in (a, b))
            costs = costs.tolist()
            gaps = -self.gaps["open"], -self.gaps["extend"]
            return gotoh(*codes, lambda x, y: costs[x][y], *gaps)

    class Distances(Engine):
        def of(self, a: str, b: str) -> int:
            return distance(a, b)

    peer.NeedlemanWunschScores, peer.LevenshteinDistances = Engine, Distances
    monkeypatch.setitem(sys.modules, "stringzilla", strings)
    monkeypatch.setitem(sys.modules, "stringzillas", peer)
    work = alignment_methods.stringzillas(problem, torch.device("cuda"))
    assert alignment.check(problem, work, work.read(work.step()), CPU) == (9, 0)


def test_edlib_gives_distances(monkeypatch):
    def align(a: str, b: str, task: str) -> dict[str, int]:
        assert task == "distance"
        return {"editDistance": distance(a, b)}

    peer = ModuleType("edlib")
    peer.align = align
    monkeypatch.setitem(sys.modules, "edlib", peer)
    problem = build(shrunk(CASES["edit-512"]), 1)
    work = alignment_methods.edlib(problem, CPU)
    assert alignment.check(problem, work, work.read(work.step()), CPU) == (9, 0)


def test_each_case_has_its_peers():
    served = {
        name: [one.name for one in METHODS.values() if one.serves(CASES[name])] for name in CASES
    }
    ours, host = ["kernel", "align"], ["parasail", "parasail-threads"]
    assert served["dna-512"] == [*ours, "stringzillas", *host]
    assert served["dna-zip-512"] == served["dna-semiglobal-512"] == [*ours, *host]
    assert served["edit-512"] == [*ours, "stringzillas", "edlib"]
    assert served["dna-two-100000"] == [*ours, "stringzillas", "parasail"]
    assert served["dna-cigar-random-1000"] == ours
    assert served["batch-1024-512"] == [*ours, "torch-rows", "torch-cells"]
    assert served["batch-32-512"] == [*ours, "torch-rows"]


def test_peers_that_are_not_installed_are_skipped_with_the_reason(lab, tiny, monkeypatch, capfd):
    monkeypatch.setattr(alignment_methods, "find_spec", lambda _name: None)
    alignment.run_alignment(lab, tiny[:1], ["parasail", "align"], 1)
    assert "alignment parasail: skipped, parasail is not installed" in capfd.readouterr().err
    assert [r.impl for r in read_rows(lab.results.path("alignment"))] == ["align"]


def test_loops_over_cells_score_as_the_definition():
    rng = np.random.default_rng(0)
    queries, targets = (torch.from_numpy(rng.integers(0, 20, (n, 3))) for n in (7, 11))
    gaps = alignment_methods.Gaps(PROTEIN.gap_open, PROTEIN.gap_extend)
    found = alignment_methods.align_cell_by_cell(queries, targets, PROTEIN.scores, gaps)
    scores = PROTEIN.scores.tolist()
    for k, score in enumerate(found.tolist()):
        a, b = queries[:, k].tolist(), targets[:, k].tolist()
        assert score == gotoh(a, b, lambda x, y: scores[x][y], *gaps)


@pytest.mark.gpu
def test_every_method_is_right_on_a_gpu(tmp_path, tiny):
    device = torch.device("cuda")
    lab = Lab(device, WHERE, Results(tmp_path), Budget(sampling=0.01))
    alignment.run_alignment(lab, tiny, list(METHODS), 1)
    rows = read_rows(lab.results.path("alignment"))
    assert {r.gate for r in rows} == {"pass"}
    assert {r.case for r in rows if r.impl == "kernel"} == set(tiny)


# The CSV, the table and the figure


def test_columns_are_those_agreed(tmp_path):
    rows = [row("dna-512", "kernel"), row("dna-512", "align", ms=None, gcups=None)]
    Results(tmp_path).add(rows)
    assert ",".join(columns_of(AlignmentRow)) == COLUMNS
    assert (tmp_path / "alignment.csv").read_text().splitlines()[0] == COLUMNS
    assert read_rows(tmp_path / "alignment.csv") == rows


def test_aligners_are_tabulated_and_drawn(tmp_path):
    speeds = {"kernel": 5400.0, "align": 2000.0, "stringzillas": 410.0, "parasail": 4.5}
    rows = [row("dna-512", impl, gcups=gcups) for impl, gcups in speeds.items()]
    del speeds["stringzillas"]
    rows += [row("dna-zip-512", impl, gcups=gcups) for impl, gcups in speeds.items()]
    times = {"kernel": 0.2, "align": 0.5, "torch-rows": 50.0, "torch-cells": 9000.0}
    rows += [row("batch-1024-512", impl, ms, pairing="zip") for impl, ms in times.items()]
    Results(tmp_path).add(rows)
    text = tables.tables(tmp_path)
    assert "| dna-512 | 1,024 | 4.5 | – | 410 | **5,400** | 2,000 | 13.2x | 0.5 |" in text
    assert "| dna-zip-512 | 1,024 | 4.5 | – | – | **5,400** | 2,000 | 444.4x | 0.5 |" in text
    assert "| 1,024 | 512 | 9e+03 | 50 | **0.2** | 0.5 | 45,000x | 250x |" in text
    (path,) = figures.draw(tmp_path)
    drawn = path.read_text()
    assert path.name == "alignment.svg"
    assert "stringzillas-cuda" in drawn
    assert "batch-1024-512" not in drawn
    figures.draw(tmp_path)
    assert path.read_text() == drawn


def test_the_command_runs_selected_cases_and_methods(tmp_path, capfd):
    options = ["--cases", "batch-32-32", "--only", "align", "--device", "cpu", "--seed", "7"]
    options += ["--out", str(tmp_path), "--sampling", "0.01"]
    assert command.main(["alignment", *options]) == 0
    (found,) = read_rows(tmp_path / "alignment.csv")
    assert (found.case, found.impl, found.wrong) == ("batch-32-32", "align", 0)
    assert "--seed 7" in capfd.readouterr().out
