"""`bio.align` on the CPU: what it reads, refuses, computes and shows."""

from __future__ import annotations

import gzip
import importlib
import io
import os
import re
import signal
import subprocess
import sys
import time
import types
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
from mlff_triton.bio.alignment import cigar, sequences
from mlff_triton.bio.alignment.backends import Task, _letters_of_distance
from mlff_triton.bio.alignment.scoring import Scoring
from mlff_triton.errors import BackendError, InputError
from mlff_triton.kernels.types.sequence_pairs import GLOBAL, Free, Gaps, Runs, join_runs

module = importlib.import_module("mlff_triton.bio.alignment.align")  # hidden by its function

GUIDE = Path(__file__).parents[3] / "docs" / "alignment.md"
QUERIES = ["ACGTTAGGGT", "acgt", "", "GATTACA", "NNACGT"]
TARGETS = ["TTACTTAGGGT", "CCACGTCC", "A", "GCATGCN", ""]
SCORES = [6, -6, -5, -6, -15]
PACKED = gzip.compress(b">a\nACGT\n", mtime=0)  # or names of tests would have the time


def align(queries=QUERIES, targets=TARGETS, *, device="cpu", **options):
    return bio.align(queries, targets, device=device, **options)


# What it computes


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


def test_defaults_are_as_stated():
    function = parasail.nw_scan_32
    matrix = parasail.matrix_create("ACGTU", 2, -3)
    expected = function("ACGTTAGGGT", "TTACTTAGGGT", 5, 2, matrix).score
    assert align().score.tolist() == SCORES
    assert SCORES[0] == expected


def test_an_interrupt_of_parasail_is_soon_over(monkeypatch):
    """The portions that no thread has begun are left."""
    done, function = [], parasail.nw_scan_sat

    def interrupted(*arguments):
        done.append(1)
        if len(done) == 3:
            signal.raise_signal(signal.SIGINT)
        time.sleep(1e-4)
        return function(*arguments)

    monkeypatch.setattr(parasail, "nw_scan_sat", interrupted)
    with pytest.raises(KeyboardInterrupt):
        align(["ACGT"] * 9999, ["ACGT"] * 9999, backend="parasail")
    assert 3 <= len(done) < 9999


def test_a_band_limits_what_is_used():
    free, narrow = (align(["ACGTACGT"], ["CGTACGTA"], band=band) for band in (None, 0))
    assert (free.score.item(), narrow.score.item()) == (4, -24)


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
    read = module.Alphabet("ACGTN").read(["A" * 99] * 4 + ["A" * 9] * 40, "query")
    shares = module._shares(read, read, "zip", 4)
    assert [a for a, _ in shares] == [0, 1, 2, 3]
    assert shares[-1][1] == 44
    assert module._shares(read.part(0, 1), read.part(0, 1), "zip", 4) == [(0, 1)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4),  # N is not even itself
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
    assert _letters_of_distance(task._replace(**options)) == expected


# What it reads


def as_records(texts):
    return [SeqRecord(Seq(text), id=f"r{k}") for k, text in enumerate(texts)]


def as_tensors(texts):
    letters = "ACGTN"
    codes = torch.full((len(texts), 20), 99)
    for row, text in zip(codes, texts, strict=True):
        row[: len(text)] = torch.tensor([letters.index(x) for x in text.upper()])
    return codes, torch.tensor([len(text) for text in texts])


@pytest.mark.parametrize(
    "form",
    [
        tuple,
        iter,
        lambda texts: [text.encode() for text in texts],
        lambda texts: [texts[0], texts[1].encode(), Seq(texts[2]), *texts[3:]],
        as_records,
        as_tensors,
        lambda texts: np.array(texts, dtype=object),
        lambda texts: {f"s{k}": text for k, text in enumerate(texts)},
        lambda texts: {record.id: record for record in as_records(texts)},
        lambda texts: (as_tensors(texts)[0], list(map(len, texts))),
    ],
)
def test_forms_of_sequences(form):
    assert align(form(QUERIES), form(TARGETS)).score.tolist() == SCORES


def test_many_strings_with_others_among_them():
    texts = [*QUERIES * 200, Seq("ACGT"), b"ACGT", *QUERIES * 200, b"ACGT"]
    letters = [text if isinstance(text, str) else bytes(text).decode() for text in texts]
    found, expected = (module.Alphabet("ACGTN").read(some, "query") for some in (texts, letters))
    assert torch.equal(found.letters, expected.letters)
    assert torch.equal(found.length, expected.length)
    with pytest.raises(InputError, match="query 1000 is no sequence, but of type int"):
        align([*QUERIES * 200, 3], ["A"])


def test_names_are_those_of_records():
    found = align(as_records(["AC"]), ["AC"])
    assert (found.query_names, found.target_names) == (["r0"], ["0"])
    assert align({"some": "AC"}, {5: "AC"})[0][:2] == ("some", "5")


def test_whole_numbers_may_be_floats():
    assert align(["ACGT"], ["AT"], gap_open=6.0, gap_extend=np.int64(1)).score.tolist() == [-3]


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_fasta(tmp_path, pack, end, mark):
    lines = [b"", b">one two", b"AC gt", b"", b"TT", b">three", b"N"]
    path = tmp_path / "some.fa"
    path.write_bytes(pack(mark + end.join(lines)))
    found = align(path, str(path), traceback=True)
    assert found.query_names == ["one", "three"]
    assert [found.query_letters(k) for k in range(2)] == ["ACGTTT", "N"]
    assert found.cigar == ["6=", "1="]


def test_many_sequences_keep_their_places():
    draw = np.random.default_rng(0)
    texts = ["".join(draw.choice(list("ACGT"), size)) for size in draw.integers(0, 9, 1000)]
    assert module.Alphabet("ACGTN").decode(module.Alphabet("ACGTN").read(texts, "query")) == texts


@pytest.mark.parametrize("unknown", [None, "N"])
@pytest.mark.parametrize("form", [str, str.encode])
@pytest.mark.parametrize("longest", [0, 9])
def test_a_device_translates_as_the_host_does(monkeypatch, unknown, form, longest):
    monkeypatch.setattr(sequences, "UPLOADED", 300)
    monkeypatch.setattr(sequences, "TRANSLATED", 100)
    draw = np.random.default_rng(0)
    letters = list("ACGTNacgtn" + "-é" * (unknown is not None))
    sizes = draw.integers(0, longest + 1, 1000)
    texts = [form("".join(draw.choice(letters, size))) for size in sizes]
    host, device = (
        module.Alphabet("ACGTN", unknown, device=device).read(texts, "query")
        for device in (None, torch.device("cpu"))
    )
    assert host.names == device.names
    assert all(map(torch.equal, host[1:], device[1:]))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["ACGT", "", "ACXT"], "query 2 has 'X' at 3, which is none of ACGTN"),
        (["A", "Aé"], "query 1 has 'é' at 2"),
        ([b"A", b"\xffC"], "query 1 has 'ÿ' at 1"),
        ([], "there is no query"),
    ],
)
def test_a_device_refuses_as_the_host_does(texts, message):
    for device in (None, torch.device("cpu")):
        with pytest.raises(InputError, match=message):
            module.Alphabet("ACGTN", device=device).read(texts, "query")


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


# What it refuses


@pytest.mark.parametrize(
    ("queries", "targets", "options", "message"),
    [
        (["ACGT", "ACXT"], ["A", "A"], {}, "query 1 has 'X' at 3, which is none of ACGTN"),
        (["A"], [b"A-"], {}, "target 0 has '-' at 2"),
        (["ACé"], ["A"], {}, "query 0 has 'é' at 3"),
        (as_records(["A", "AQ"]), ["A", "A"], {}, "query r1 has 'Q' at 2"),
        (["A"], ["A"], {"unknown": "X"}, "unknown='X' is none of the letters ACGTN"),
        ([], ["A"], {}, "there is no query"),
        (["A"], [], {}, "there is no target"),
        (["A"] * 3, ["A"], {}, "3 queries and 1 targets make no pairs, from query 1 on"),
        (["A"], as_records(["A", "C"]), {}, "from target r1 on"),
        ("ACGT", ["A"], {}, "ACGT cannot be read: No such file.*as a list of one"),
        (["A", 5], ["A", "A"], {}, "query 1 is no sequence, but of type int"),
        (5, ["A"], {}, "int is nothing to read sequences from"),
        (torch.zeros(2, 3).int(), ["A"], {}, r"of type Tensor: .* codes as \(tensor, lengths\)"),
        (b"ACGT", ["A"], {}, "a single query is given as a list of one"),
        (["A"], Seq("ACGT"), {}, "a single target is given as a list of one"),
        (SeqRecord(Seq("ACGT")), ["A"], {}, "a single query is given as a list of one"),
        ({"some": "ACQT"}, ["A"], {}, "query some has 'Q' at 3"),
        (["MU"], ["M"], {"matrix": "BLOSUM62"}, "query 0 has 'U' at 2.*: give unknown='X' to"),
        (["MU"], ["M"], {"matrix": np.eye(20)}, "'U' at 2.*ARNDCQEGHILKMFPSTWYV: give a matrix"),
        (["A"], ["A"], {"unknown": 5}, "unknown=5 is none of the letters"),
        (["A"], ["A"], {"mode": None}, "mode=None is unknown"),
        (["A"], ["A"], {"mode": 5}, "mode=5 is unknown"),
        (["A"], ["A"], {"mode": "overlap"}, "mode='overlap' is unknown"),
        (["A"], ["A"], {"mode": ("query_begin", "left")}, "mode=.* is unknown"),
        (["A"], ["A"], {"pairs": "some"}, "pairs='some' is unknown"),
        (["A"], ["A"], {"gap_open": -5}, "gap_open=-5 is a cost.*did you mean 5"),
        (["A"], ["A"], {"gap_extend": 7}, "gap_extend=7 is more than gap_open=5"),
        (["A"], ["A"], {"gap_open": 5.5}, "gap_open=5.5 is no integer"),
        (["A"], ["A"], {"gap_open": "5"}, "gap_open='5' is no integer"),
        (
            ["A"],
            ["A"],
            {"gap_open": 5, "gap_extend": -2},
            "gap_extend=-2 is a cost.*did you mean 2",
        ),
        (["A"], ["A"], {"match": float("inf")}, "match=inf is no integer"),
        (["A"], ["A"], {"match": 2**31}, "match=2147483648 is too large for int32"),
        (["A"], ["A"], {"mismatch": 3}, "mismatch=3 is a score, not a cost"),
        (["A"], ["A"], {"matrix": "BLOSUM62", "match": 1}, "but not both"),
        (["A"], ["A"], {"matrix": "BLOSUM63"}, "there is no matrix BLOSUM63"),
        (["A"], ["A"], {"matrix": np.ones((4, 5))}, r"a matrix is square, not \[4, 5\]"),
        (["A"], ["A"], {"matrix": np.ones((3, 3))}, "a matrix of 3 letters must say which"),
        (["A"], ["A"], {"matrix": [[1, 0], [0]]}, "rows are of different lengths"),
        (["A"], ["A"], {"matrix": np.eye(4) / 2}, "must hold integers"),
        (["A"], ["A"], {"matrix": np.full((4, 4), np.nan)}, "must hold integers"),
        (["A"], ["A"], {"matrix": np.triu(np.ones((4, 4)))}, "not symmetric: A against C"),
        (["A"], ["A"], {"matrix": np.full((4, 4), 2**31)}, "too large"),
        (["A" * 999], ["A" * 999], {"match": 10**6}, "do not fit in int32"),
        (["A"], ["A"], {"band": -1}, "band=-1 is no number of letters"),
        (["A"], ["A"], {"band": 1.5}, "band=1.5 is no number of letters"),
        (["A"], ["A"], {"band": "x"}, "band='x' is no number of letters"),
        (["A", "ACGT"], ["A", "A"], {"band": 2}, "query 1 has 3 letters more than its partner 1"),
        (["A"], ["ACGT"], {"band": 2, "pairs": "all"}, "target 0 has 3 letters more"),
        (["A"], ["A"], {"backend": "cuda"}, "backend='cuda' is unknown"),
        ((torch.zeros(2, 3), torch.ones(2)), ["A"], {}, "encoded query letters are integers"),
        ((torch.zeros(2, 3).int(), torch.ones(3)), ["A"], {}, "encoded query letters"),
        ((torch.zeros(1, 3).int(), torch.tensor([1.5])), ["A"], {}, "encoded query letters"),
        ((torch.zeros(1, 3).int(), torch.tensor([4])), ["A"], {}, "not within 0 to 3"),
        ((torch.full((1, 3), 5), torch.tensor([3])), ["A"], {}, "query 0 has code 5 at 1"),
    ],
)
def test_refusals(queries, targets, options, message):
    with pytest.raises(InputError, match=message) as refused:
        align(queries, targets, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no records"),
        (b"ACGT\n", "is no FASTA file"),
        (b">a\nACGT\n>b", "record b of .* has no letters: is the file cut off"),
        (b">\nACGT\n", "a record without a name"),
        (PACKED[:-9], "is damaged or cut off"),
        (PACKED[:5], "is damaged or cut off before its first record"),
        (PACKED[:-8] + bytes(8), "is damaged or cut off in record a"),
        (PACKED + b"more", "is damaged or cut off in record a"),
        (b"@a\nACGT\n+\nIIII\n", "is no FASTA file"),
        (b">a\nAC-GT\n", "query a has '-' at 3"),
    ],
)
def test_files_are_refused(tmp_path, content, message):
    path = tmp_path / "some.fa"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        align(path, ["A"])
    assert str(path) in str(refused.value) or "query a" in message


def test_pipes_are_refused(tmp_path):
    """They would be empty when they are opened again."""
    os.mkfifo(tmp_path / "some.fa")
    with pytest.raises(InputError, match=r"some\.fa is a pipe, which is read only once"):
        align(tmp_path / "some.fa", ["A"])


def test_a_file_cut_off_is_refused_with_the_record(tmp_path):
    draw = np.random.default_rng(0)
    records = [f">r{k}\n{''.join(draw.choice(list('ACGT'), 900))}\n" for k in range(100)]
    packed = gzip.compress("".join(records).encode())
    path = tmp_path / "some.fa.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match=r"is damaged or cut off in record r(4|5)\d"):
        align(path, ["A"])


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


# What it shows


@pytest.fixture
def found():
    return align(["TTACGTACC", "A", "AC"], ["GGACGACC", "C", "AC"], mode="local", traceback=True)


def test_cigars_and_numbers(found):
    assert found.score.tolist() == [7, 0, 4]
    assert found.cigar == ["3=1I3=", "", "2="]
    assert found.cigar_m == ["3M1I3M", "", "2M"]
    assert found.begin.tolist() == [[2, 2], [0, 0], [0, 0]]
    assert found.end.tolist() == [[9, 8], [0, 0], [2, 2]]
    np.testing.assert_allclose(found.identity, [6 / 7, np.nan, 1])


def test_cigar_m_joins_matches_and_mismatches():
    assert align(["ACGTAC"], ["ACCTAC"], traceback=True).cigar_m == ["6M"]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12345)), max_size=6), min_size=1)
)
def test_cigars_of_any_runs(pairs):
    runs = Runs(
        torch.tensor([0, *map(len, pairs)]).cumsum(0),
        torch.tensor([k for pair in pairs for k, _ in pair], dtype=torch.uint8),
        torch.tensor([n for pair in pairs for _, n in pair], dtype=torch.int32),
    )
    expected = ["".join(f"{n}{'=XID'[k]}" for k, n in pair) for pair in pairs]
    assert cigar.cigars(runs) == expected
    merged = []
    for pair in pairs:
        letters = "".join("MMID"[k] * n for k, n in pair)
        merged.append("".join(f"{len(x[0])}{x[1]}" for x in re.findall(r"((.)\2*)", letters)))
    separate = cigar.cigars(cigar.without_mismatches(runs), "MMID")
    assert separate == merged
    both = cigar.cigars(join_runs([runs, runs]))
    assert both == expected * 2
    assert cigar.columns(runs).tolist() == [sum(n for _, n in pair) for pair in pairs]


def test_rows(found):
    assert found.aligned(0) == ("ACGTACC", "|||-|||", "ACG-ACC")
    assert found.aligned(-1) == ("AC", "||", "AC")
    assert found.aligned(1) == ("", "", "")
    with pytest.raises(IndexError):
        found.aligned(3)


def test_pretty(found):
    assert found.pretty(0, width=4).split("\n") == [
        "0 / 0: score 7, identity 6/7",
        "",
        "0 3 ACGT 6",
        "    |||-",
        "0 3 ACG- 5",
        "",
        "0 7 ACC 9",
        "    |||",
        "0 6 ACC 8",
    ]
    assert str(found).startswith(found.pretty(0))
    assert repr(found) == "<3 alignments with traceback>"
    assert str(align(["A"] * 12, ["A"] * 12)).endswith("9 / 9: score 2\n... and 2 more")


def test_iteration(found):
    first, second, _ = found
    assert first == ("0", "0", 7, 2, 9, 2, 8, pytest.approx(6 / 7), "3=1I3=")
    assert second.cigar == ""
    assert (found[0], found[-2]) == (first, second)
    with pytest.raises(IndexError):
        found[3]
    (only,) = align(["A"], ["A"])
    assert only == ("0", "0", 2, None, None, None, None, None, None)


def test_scores_alone_have_no_cigar():
    scores = align()
    for ask in (
        lambda: scores.cigar,
        lambda: scores.identity,
        lambda: scores.begin,
        lambda: scores.aligned(0),
        lambda: scores.to_sam(io.StringIO()),
    ):
        with pytest.raises(InputError, match="align with traceback=True"):
            ask()


def sam_of(found, **options):
    file = io.StringIO()
    found.to_sam(file, **options)
    lines = file.getvalue().splitlines()
    head = [line for line in lines if line.startswith("@")]
    return head, [line.split("\t") for line in lines[len(head) :]]


def test_sam(found, tmp_path):
    head, rows = sam_of(found)
    assert head[0] == "@HD\tVN:1.6\tSO:unsorted"
    assert head[1:4] == ["@SQ\tSN:0\tLN:8", "@SQ\tSN:1\tLN:1", "@SQ\tSN:2\tLN:2"]
    assert "\t".join(rows[0]) == (
        "0\t0\t0\t3\t255\t2S3=1I3=\t*\t0\t0\tTTACGTACC\t*\tAS:i:7\tNM:i:1"
    )
    assert rows[1][:6] == ["1", "4", "*", "0", "0", "*"]
    _, clipped = sam_of(found, hard_clip=True)
    assert (clipped[0][5], clipped[0][9]) == ("2H3=1I3=", "ACGTACC")
    found.to_sam(tmp_path / "some.sam")
    assert (tmp_path / "some.sam").read_text().splitlines()[5].split("\t") == rows[0]
    assert len(list(tmp_path.iterdir())) == 1


def test_sam_consumes_all_letters():
    found = align(pairs="all", mode="semiglobal", traceback=True)
    _, rows = sam_of(found)
    for k, row in enumerate(rows):
        steps = [(int(n), x) for n, x in re.findall(r"(\d+)([=XIDS])", row[5])]
        if row[1] == "4":
            continue
        assert row[1] == ("0" if k % len(TARGETS) == 0 else "256")
        assert sum(n for n, x in steps if x in "=XIS") == len(row[9])
        covered = sum(n for n, x in steps if x in "=XD")
        assert int(row[3]) - 1 + covered <= len(found.target_letters(k))
        distance = sum(n for n, x in steps if x in "XID")
        assert row[12] == f"NM:i:{distance}"


def test_sam_refuses_names_it_does_not_have(tmp_path):
    path = tmp_path / "some.fa"
    path.write_text(">a\nACGT\n>a\nACG\n")
    with pytest.raises(InputError, match="two targets are called a"):
        align(["ACGT", "A"], path, traceback=True).to_sam(tmp_path / "some.sam")
    assert not (tmp_path / "some.sam").exists()
    path.write_text(">*a\nACGT\n")
    with pytest.raises(InputError, match="no target of the name"):
        align(["ACGT"], path, traceback=True).to_sam(io.StringIO())
    path.write_text(">@a\nACGT\n")
    with pytest.raises(InputError, match="no query of the name"):
        align(path, ["ACGT"], traceback=True).to_sam(io.StringIO())


def test_pandas(found, monkeypatch):
    pandas = types.ModuleType("pandas")
    pandas.DataFrame = dict  # columns, as it takes them
    monkeypatch.setattr("mlff_triton.bio.alignment.result.find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install pandas"):
        found.to_pandas()
    monkeypatch.setattr("mlff_triton.bio.alignment.result.find_spec", lambda _: pandas)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    table = found.to_pandas()
    assert list(table)[:4] == ["query", "target", "score", "query_begin"]
    assert table["cigar"] == found.cigar
    assert list(align().to_pandas()) == ["query", "target", "score"]


def test_first_example_of_the_guide_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = GUIDE.read_text().partition("```python\n")[2].partition("```")[0]
    exec(code, {})  # noqa: S102 - as a reader would
    assert capsys.readouterr().out.splitlines()[0] == re.search(r"# (\[20.*)", code)[1]
    assert "second\t0\ttarget\t5\t255\t4=1D5=" in (tmp_path / "reads.sam").read_text()


def test_importing_bio_loads_no_aligner():
    code = "import sys, mlff_triton.bio; print('mlff_triton.bio.alignment' in sys.modules)"
    done = subprocess.run(  # noqa: S603 - the code is above
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
    with pytest.raises(AttributeError, match="no attribute 'alig'"):
        _ = bio.alig
