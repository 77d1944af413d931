"""`bio.align` on the CPU: scores, options, matrices, backends and refusals."""

from __future__ import annotations

import importlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import parasail
import pytest
import torch
from Bio.Align import substitution_matrices
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from mlff_triton import bio
from mlff_triton.bio.alignment.backends import Task, _edit_distance_letters
from mlff_triton.bio.alignment.scoring import Scoring
from mlff_triton.bio.alignment.sequences import Alphabet
from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.alignment.types import GLOBAL, Free, Gaps
from tests.support.alignments import QUERIES, SCORES, TARGETS, align, as_records

module = importlib.import_module("mlff_triton.bio.alignment.align")  # hidden by its function

GUIDE = Path(__file__).parents[3] / "docs" / "alignment.md"


@pytest.mark.parametrize("pairs", ["zip", "all"])
@pytest.mark.parametrize(
    "mode",
    [
        "global",
        "local",
        "semiglobal",
        "query_begin",
        ("target_begin", "target_end"),
        ("query_begin", "query_end", "target_begin"),
    ],
)
def test_backends_agree(mode, pairs):
    found = [align(mode=mode, pairs=pairs, backend=backend) for backend in ("torch", "parasail")]
    assert torch.equal(found[0].score, found[1].score)
    assert found[0].score.dtype == torch.int32
    traced = align(mode=mode, pairs=pairs, traceback=True, backend="parasail")
    assert torch.equal(traced.score, found[0].score)


@settings(max_examples=20)
@given(
    some=st.lists(st.tuples(st.text("ARNDCQEGX", max_size=20), st.text("ARNDCQEGX", max_size=20))),
    matrix=st.sampled_from(["BLOSUM62", "PAM250", "blosum45"]),
    mode=st.sampled_from(["global", "local", "semiglobal"]),
    costs=st.sampled_from([(11, 1), (4, 4), (0, 0)]),
)
def test_proteins_score_as_in_parasail(some, matrix, mode, costs):
    queries, targets = zip(*[*some, ("A", "A")], strict=True)
    options = {"matrix": matrix, "mode": mode, "gap_open": costs[0], "gap_extend": costs[1]}
    found = [align(queries, targets, backend=name, **options) for name in ("torch", "parasail")]
    assert torch.equal(found[0].score, found[1].score)


def test_scores_beyond_int16():
    text = "ACGT" * 3000
    found = align([text], [text[:-4]], match=10, mismatch=-10, backend="parasail")
    assert found.score.tolist() == [119949]


@pytest.mark.parametrize(
    ("length", "mode", "scores", "gaps"),
    [
        (20_432, "local", (2, -3), (5, 2)),
        (3000, "local", (1, -1), (5, 5)),
        (30, "global", (2, -3), (100, 0)),
        (5, "global", (5, -4), (40_000, 0)),
    ],
)
def test_scores_of_long_sequences_and_large_penalties(length, mode, scores, gaps):
    long, short = ("ACGTTGCAACT" * length)[:length], "TTC"

    def score_of(query, target, backend):
        options = {"match": scores[0], "mismatch": scores[1], "mode": mode, "backend": backend}
        return align([query], [target], gap_open=gaps[0], gap_extend=gaps[1], **options).score

    expected = score_of(short, long, "torch")
    assert score_of(short, long, "parasail") == expected
    assert score_of(long, short, "parasail") == expected


def test_defaults_are_as_stated():
    function = parasail.nw_scan_32
    matrix = parasail.matrix_create("ACGTU", 2, -3)
    expected = function("ACGTTAGGGT", "TTACTTAGGGT", 5, 2, matrix).score
    assert align().score.tolist() == SCORES
    assert SCORES[0] == expected


def test_an_interrupt_stops_parasail_soon(monkeypatch):
    """Threads do not start further portions after an interrupt."""
    done, function = [], parasail.nw_scan_16

    def interrupted(*arguments):
        done.append(1)
        if len(done) == 3:
            signal.raise_signal(signal.SIGINT)
        time.sleep(1e-4)
        return function(*arguments)

    monkeypatch.setattr(parasail, "nw_scan_16", interrupted)
    with pytest.raises(KeyboardInterrupt):
        align(["ACGT"] * 9999, ["ACGT"] * 9999, backend="parasail")
    assert 3 <= len(done) < 9999


def test_a_band_limits_what_is_used():
    free, narrow = (align(["ACGTACGT"], ["CGTACGTA"], band=band) for band in (None, 0))
    assert (free.score.item(), narrow.score.item()) == (4, -24)


@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_a_band_beyond_the_table_has_no_effect(backend):
    for band in (4, 2**31, 2**63, 2**100):
        found = align(["ACGT", "A"], ["GT", "AC"], band=band, backend=backend, traceback=True)
        assert found.score.tolist() == [-3, -3]


def test_tables_beyond_memory_are_refused():
    long = "A" * 100_000
    message = "traceback of 100000 x 100000 .* needs a table of 9.31 GiB, more than 4: use a GPU"
    with pytest.raises(InputError, match=message):
        align(["A", long], ["A", long], traceback=True)


def test_default_gaps_suit_the_matrix():
    texts = ["MKTAYIAKQR"], ["MKTAYKQR"]
    proteins = align(*texts, matrix="BLOSUM62").score
    assert torch.equal(proteins, align(*texts, matrix="BLOSUM62", gap_open=11, gap_extend=1).score)
    linear = align(*texts, matrix="BLOSUM62", gap_open=1).score
    assert linear.item() - proteins.item() == 10
    texts = ["ACGTACGT"], ["ACGCGT"]
    for matrix in (None, "NUC.4.4", 5 * torch.eye(4)):
        explicit = align(*texts, matrix=matrix, gap_open=5, gap_extend=2).score
        assert torch.equal(align(*texts, matrix=matrix).score, explicit)


def test_all_pairs_are_in_rows():
    found = align(["ACGT", "TTTT"], ["ACGT", "TT", "A"], pairs="all")
    assert len(found) == 6
    assert found.query_names == ["0", "0", "0", "1", "1", "1"]
    assert found.target_names == ["0", "1", "2"] * 2
    each = [align([q], [t]).score.item() for q in ["ACGT", "TTTT"] for t in ["ACGT", "TT", "A"]]
    assert found.score.tolist() == each


@pytest.mark.parametrize("pairs", ["zip", "all"])
@pytest.mark.parametrize("traceback", [False, True])
@pytest.mark.parametrize("same", [False, True])
def test_shares_of_several_devices_make_the_whole(monkeypatch, pairs, traceback, same):
    targets = QUERIES if same else TARGETS
    whole = align(targets=targets, pairs=pairs, traceback=traceback)
    monkeypatch.setattr(module, "find_devices", lambda *_: [torch.device("cpu")] * 3)
    spread = align(targets=targets, pairs=pairs, traceback=traceback)
    assert torch.equal(spread.score, whole.score)
    assert list(map(str, spread)) == list(map(str, whole))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda", "all"])
@pytest.mark.parametrize("mode", ["global", "local", "semiglobal"])
@pytest.mark.parametrize("pairs", ["zip", "all"])
def test_gpus_give_what_the_cpu_does(device, mode, pairs):
    draw = np.random.default_rng(0)
    queries, targets = (
        ["".join(draw.choice(list("ACGTNacgt"), size)) for size in draw.integers(0, 99, 60)]
        for _ in range(2)
    )
    found, expected = (
        align(queries, targets, mode=mode, pairs=pairs, traceback=True, device=place)
        for place in (device, "cpu")
    )
    assert found.score.tolist() == expected.score.tolist()
    assert found.cigar == expected.cigar
    assert found.cigar_m == expected.cigar_m
    assert [*map(found.pretty, range(60))] == [*map(expected.pretty, range(60))]


def test_shares_have_as_many_cells():
    read = Alphabet("ACGTN").read(["A" * 99] * 4 + ["A" * 9] * 40, "query")
    shares = module._shares(read, read, "zip", 4)
    assert [a for a, _ in shares] == [0, 1, 2, 3]
    assert shares[-1][1] == 44
    assert module._shares(read.part(0, 1), read.part(0, 1), "zip", 4) == [(0, 1)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4),  # N does not match even itself
        ({"matrix": torch.eye(20).long() - 1}, 20),
        ({"matrix": torch.eye(4).long() * 2 - 1}, 0),
        ({"matrix": -torch.ones(4, 4).long()}, 0),
        ({"free": Free(anywhere=True)}, 0),
        ({"gaps": Gaps(2, 1)}, 0),
        ({"band": 3}, 0),
        ({"traceback": True}, 0),
    ],
)
def test_letters_whose_scores_are_edit_distances(options, expected):
    scoring = Scoring.of(None, 0, -1, 1, 1)
    task = Task(scoring.matrix, scoring.gaps, GLOBAL, None, False)
    assert _edit_distance_letters(task._replace(**options)) == expected


def test_unknown_letters_can_be_mapped():
    assert align(["ACRT"], ["ACNT"], unknown="n").score.tolist() == [3]
    assert align(["ACéT"], ["ACNT"], unknown="N").score.tolist() == [3]


def test_matrices():
    blosum = substitution_matrices.load("BLOSUM62")
    for matrix in ("BLOSUM62", "blosum62", blosum, np.array(blosum)):
        assert align(["WAR"], ["WAR"], matrix=matrix).score.tolist() == [20]
    bases = np.full((4, 4), -1.0) + 3 * np.eye(4)
    assert align(["ACG"], ["ACT"], matrix=bases).score.tolist() == [3]


def test_a_table_names_its_letters():
    class Table:
        columns = ("x", "Y")

        def __array__(self, *_, **__):
            return np.array([[1, -1], [-1, 1]])

    assert align(["XYX"], ["XYY"], matrix=Table()).score.tolist() == [1]


@pytest.mark.parametrize(
    ("queries", "targets", "options", "message"),
    [
        (
            ["ACGT", "ACXT"],
            ["A", "A"],
            {},
            "query 1 has 'X' at position 3, which is not one of ACGTN",
        ),
        (["A"], [b"A-"], {}, "target 0 has '-' at position 2"),
        (["ACé"], ["A"], {}, "query 0 has 'é' at position 3"),
        (as_records(["A", "AQ"]), ["A", "A"], {}, "query r1 has 'Q' at position 2"),
        (["A"], ["A"], {"unknown": "X"}, "unknown='X' is not one of ACGTN"),
        ([], ["A"], {}, "there is no query"),
        (["A"], [], {}, "there is no target"),
        (
            ["A"] * 3,
            ["A"],
            {},
            "3 queries and 1 targets cannot be paired.*: query 1 has no partner",
        ),
        (["A"], as_records(["A", "C"]), {}, "target r1 has no partner"),
        ("ACGT", ["A"], {}, "ACGT cannot be read: No such file.*into a list"),
        (["A", 5], ["A", "A"], {}, "query 1 is not a sequence but of type int"),
        (5, ["A"], {}, "cannot read sequences from an object of type int"),
        (torch.zeros(2, 3).int(), ["A"], {}, r"of type Tensor: .* codes as \(tensor, lengths\)"),
        (b"ACGT", ["A"], {}, "put a single query into a list"),
        (["A"], Seq("ACGT"), {}, "put a single target into a list"),
        (SeqRecord(Seq("ACGT")), ["A"], {}, "put a single query into a list"),
        ({"some": "ACQT"}, ["A"], {}, "query some has 'Q' at position 3"),
        (["MU"], ["M"], {"matrix": "BLOSUM62"}, "'U' at position 2.*: give unknown='X' to"),
        (
            ["MU"],
            ["M"],
            {"matrix": np.eye(20)},
            "'U' at position 2.*ARNDCQEGHILKMFPSTWYV: give a matrix",
        ),
        (["A"], ["A"], {"unknown": 5}, "unknown=5 is not one of"),
        (["A"], ["A"], {"mode": None}, "mode=None is unknown"),
        (["A"], ["A"], {"mode": 5}, "mode=5 is unknown"),
        (["A"], ["A"], {"mode": "overlap"}, "mode='overlap' is unknown"),
        (["A"], ["A"], {"mode": ("query_begin", "left")}, "mode=.* is unknown"),
        (["A"], ["A"], {"pairs": "some"}, "pairs='some' is unknown"),
        (["A"], ["A"], {"gap_open": -5}, "gap_open=-5 is a penalty.*did you mean 5"),
        (["A"], ["A"], {"gap_extend": 7}, "gap_extend=7 is more than gap_open=5"),
        (["A"], ["A"], {"gap_open": 5.5}, "gap_open=5.5 is not an integer"),
        (["A"], ["A"], {"gap_open": "5"}, "gap_open='5' is not an integer"),
        (
            ["A"],
            ["A"],
            {"gap_open": 5, "gap_extend": -2},
            "gap_extend=-2 is a penalty.*did you mean 2",
        ),
        (["A"], ["A"], {"match": float("inf")}, "match=inf is not an integer"),
        (["A"], ["A"], {"match": 2**31}, "match=2147483648 is too large for int32"),
        (
            ["A"],
            ["A"],
            {"match": -4},
            "mismatch=-3 is above match=-4: .* equal bases must score more",
        ),
        (
            ["A"],
            ["A"],
            {"mismatch": 3},
            "mismatch=3 is above match=2: mismatch is a score, not a penalty",
        ),
        (["A"], ["A"], {"matrix": "BLOSUM62", "match": 1}, "but not both"),
        (["A"], ["A"], {"matrix": "BLOSUM63"}, "matrix BLOSUM63 is unknown: use one of .*BLOSUM62"),
        (["A"], ["A"], {"matrix": np.ones((4, 5))}, r"must be square, but its shape is \[4, 5\]"),
        (["A"], ["A"], {"matrix": np.ones((3, 3))}, "a matrix of size 3 must name its rows"),
        (["A"], ["A"], {"matrix": [[1, 0], [0]]}, "its rows differ in length"),
        (["A"], ["A"], {"matrix": np.eye(4) / 2}, "must hold integers"),
        (["A"], ["A"], {"matrix": np.full((4, 4), np.nan)}, "must hold integers"),
        (
            ["A"],
            ["A"],
            {"matrix": np.triu(np.ones((4, 4)))},
            "must be symmetric, but the score of A and C",
        ),
        (["A"], ["A"], {"matrix": np.full((4, 4), 2**31)}, "too large"),
        (["A" * 999], ["A" * 999], {"match": 10**6}, "do not fit in int32"),
        (["A"], ["A"], {"band": -1}, "band=-1 is not valid"),
        (["A"], ["A"], {"band": 1.5}, "band=1.5 is not valid"),
        (["A"], ["A"], {"band": "x"}, "band='x' is not valid"),
        (
            ["A", "ACGT"],
            ["A", "A"],
            {"band": 2},
            "query 1 is 3 residues or bases longer than its partner 1",
        ),
        (["A"], ["ACGT"], {"band": 2, "pairs": "all"}, "target 0 is 3 residues or bases longer"),
        (["A"], ["A"], {"backend": "cuda"}, "backend='cuda' is unknown"),
        ((torch.zeros(2, 3), torch.ones(2)), ["A"], {}, "encoded query sequences must be integers"),
        ((torch.zeros(2, 3).int(), torch.ones(3)), ["A"], {}, "encoded query sequences"),
        ((torch.zeros(1, 3).int(), torch.tensor([1.5])), ["A"], {}, "encoded query sequences"),
        (
            (torch.zeros(1, 3).int(), torch.tensor([4])),
            ["A"],
            {},
            "lengths of encoded query sequences must be from 0 to 3",
        ),
        ((torch.full((1, 3), 5), torch.tensor([3])), ["A"], {}, "query 0 has code 5 at position 1"),
    ],
)
def test_refusals(queries, targets, options, message):
    with pytest.raises(InputError, match=message) as refused:
        align(queries, targets, **options)
    assert "\n" not in str(refused.value)


def test_backends_that_cannot_serve(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="need a GPU"):
        align(backend="triton")
    if not torch.cuda.is_available():
        with pytest.raises(BackendError, match="device='all'"):
            align(device="all")
    monkeypatch.setattr("mlff_triton.bio.alignment.backends.find_spec", lambda _: None)
    assert align(backend="auto").score.tolist() == SCORES
    with pytest.raises(BackendError, match="parasail is not installed"):
        align(backend="parasail")


def test_first_example_of_the_guide_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = GUIDE.read_text().partition("```python\n")[2].partition("```")[0]
    exec(code, {})  # noqa: S102 - as a reader would
    assert capsys.readouterr().out.splitlines()[0] == re.search(r"# (\[20.*)", code)[1]
    assert "second\t0\ttarget\t5\t255\t4=1D5=" in (tmp_path / "reads.sam").read_text()


@pytest.mark.parametrize("module", ["mlff_triton.bio.alignment", "triton"])
def test_importing_bio_loads_no_aligner_and_no_triton(module):
    code = f"import sys, mlff_triton.bio; print({module!r} in sys.modules)"
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
    with pytest.raises(AttributeError, match="attribute alig"):
        _ = bio.alig
