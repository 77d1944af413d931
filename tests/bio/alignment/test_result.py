"""Results of `bio.align`: CIGAR strings, text, iteration, SAM and tables."""

from __future__ import annotations

import io
import re
import sys
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mlff_triton.bio.alignment import cigar
from mlff_triton.errors import InputError
from mlff_triton.kernels.alignment.types import Runs, join_runs
from tests.support.alignments import TARGETS, align


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
    path.write_text(">a\nACGT\n>a\nAcgA\n")  # of equal length
    with pytest.raises(InputError, match="two targets are called a: rename one"):
        align(["ACGT", "A"], path, traceback=True).to_sam(tmp_path / "some.sam")
    path.write_text(">a\nACGT\n>a\nacgt\n")
    align(["ACGT", "A"], path, traceback=True).to_sam(io.StringIO())
    path.write_text(">*a\nACGT\n")
    with pytest.raises(InputError, match="does not allow the target name"):
        align(["ACGT"], path, traceback=True).to_sam(io.StringIO())
    path.write_text(">@a\nACGT\n")
    with pytest.raises(InputError, match="does not allow the query name"):
        align(path, ["ACGT"], traceback=True).to_sam(io.StringIO())


def test_pandas(found, monkeypatch):
    pandas = types.ModuleType("pandas")
    pandas.DataFrame = dict  # from names to columns
    monkeypatch.setattr("mlff_triton.bio.alignment.result.find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install pandas"):
        found.to_pandas()
    monkeypatch.setattr("mlff_triton.bio.alignment.result.find_spec", lambda _: pandas)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    table = found.to_pandas()
    assert list(table)[:4] == ["query", "target", "score", "query_begin"]
    assert table["cigar"] == found.cigar
    assert list(align().to_pandas()) == ["query", "target", "score"]
