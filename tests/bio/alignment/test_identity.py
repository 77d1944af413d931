"""Matches and mismatches by the symbols that were given, whatever scores they have."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import torch

from mlff_triton import bio
from mlff_triton.bio.alignment import identity
from mlff_triton.bio.alignment.sequences import Alphabet
from mlff_triton.testing.settings import CALLER_SETTINGS
from tests.support.alignments import align

PROTEIN = {"matrix": "BLOSUM62", "unknown": "X"}
CASES = {
    "replaced": ("MUUUK", "MOJOK", PROTEIN, "1=3X1="),
    "the same, replaced": ("MUUUK", "MUJuK", PROTEIN, "2=1X2="),
    "the stand-in itself": ("MXUK", "MUXK", PROTEIN, "1=2X1="),
    "the stand-in in both": ("MXXK", "MXXK", PROTEIN, "4="),
    "what is not a letter": ("M-1K", "M-1K", PROTEIN, "1=2X1="),
    "beyond ASCII": ("MéK", "MèK", PROTEIN, "1=1X1="),
    "bases": ("ARRRT", "AYYYT", {"unknown": "N"}, "1=3X1="),
    "sets of bases": ("ARYRT", "ARRRT", {"unknown": "N"}, "2=1X2="),
    "any base": ("NNNN", "NNNN", {}, "4X"),
    "one of many": ("ACNGT", "acngt", {}, "2=1X2="),
    "any base and a set": ("ANRT", "ARNT", {"unknown": "N"}, "1=2X1="),
    "RNA": ("ACGU", "ACGT", {}, "4="),
    "another stand-in": ("ARCT", "AACT", {"unknown": "A"}, "1=1X2="),
    "a matrix of bases": ("ANRT", "ANRT", {"matrix": "NUC.4.4"}, "1=1X2="),
    "gaps around": ("ACNGTTTTTNA", "ACNGTNA", {"gap_open": 1, "gap_extend": 0}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_columns_by_symbols(name):
    query, target, options, cigar = CASES[name]
    found = align({"q": query}, {"t": target}, traceback=True, **options)
    rows = found.aligned(0)
    columns = "".join(int(n) * kind for n, kind in re.findall(r"(\d+)(\D)", found.cigar[0]))
    query, target = (
        text.upper().replace("U", "T" if name == "RNA" else "U") for text in (query, target)
    )
    never = set("-1éè".upper()) | set("N" * (options.get("matrix") != "BLOSUM62"))
    i = j = 0
    for kind, middle in zip(columns, rows.middle, strict=True):
        assert (kind in "=X") == (middle in "|.")
        if kind in "=X":
            assert (kind == "=") == (query[i] == target[j] and query[i] not in never)
        i += kind != "D"
        j += kind != "I"
    if cigar is not None:
        assert found.cigar == [cigar]
    matches = columns.count("=")
    assert found[0].identity == matches / len(columns)
    sam = io.StringIO()
    found.to_sam(sam)
    assert f"NM:i:{len(columns) - matches}" in sam.getvalue()
    assert found.pretty(0).splitlines()[0].endswith(f"identity {matches}/{len(columns)}")


def test_scores_and_paths_stay_those_of_the_matrix():
    replaced = align(["MUUUKJJ"], ["MOJOK"], traceback=True, **PROTEIN)
    plain = align(["MXXXKXX"], ["MXXXK"], traceback=True, **PROTEIN)
    assert replaced.score.tolist() == plain.score.tolist()
    assert replaced.cigar_m == plain.cigar_m
    assert torch.equal(replaced.end, plain.end)


def test_texts_show_what_was_given():
    found = align(["mkUj"], ["MKOJ"], traceback=True, **PROTEIN)
    assert found.query_letters(0), found.target_letters(0) == ("MKUJ", "MKOJ")
    assert found.aligned(0) == ("MKUJ", "||.|", "MKOJ")
    assert align(["AC-U"], ["ACGT"], unknown="N").query_letters(0) == "ACNT"


@pytest.mark.parametrize("pairs", ["zip", "all"])
@pytest.mark.parametrize("mode", ["global", "local", "semiglobal"])
@pytest.mark.parametrize("columns", [1, 7, 2**24])
def test_many_pairs(pairs, mode, columns, monkeypatch):
    """Compare with columns that are read one by one; few are compared at a time."""
    monkeypatch.setattr(identity, "COLUMNS", columns)
    draw = np.random.default_rng(columns)
    texts = [
        ["".join(draw.choice(list("ACGNRY"), draw.integers(0, 12))) for _ in range(9)]
        for _ in range(2)
    ]
    found = align(*texts, mode=mode, pairs=pairs, unknown="N", traceback=True)
    for k in range(len(found)):
        query, middle, target = found.aligned(k)
        expected = "".join(
            "-" if "-" in (a, b) else "|" if a == b != "N" else "."
            for a, b in zip(query, target, strict=True)
        )
        assert middle == expected
        runs = re.findall(r"(.)(\1*)", middle.replace("-", "+"))
        assert len(re.findall(r"\d+[=X]", found.cigar[k])) == sum(a in "|." for a, _ in runs)


def test_codes_in_tensors():
    codes = torch.tensor([[0, 4, 4, 1, 99]])
    found = align((codes, [4]), (codes, [4]), traceback=True)
    assert found.cigar == ["1=2X1="]


def test_a_device_keeps_what_was_given():
    texts = ["ACRYN", "ry-N", "é"]
    host, device = (
        Alphabet("ACGTN", "N", device=d, encoding_batch=3).read(texts, "query")
        for d in (None, torch.device("cpu"))
    )
    assert torch.equal(host.given, device.given)
    assert bytes(host.given.tolist()) == b"\0\0RY\0RY-\0?"
    assert host.part(1, 2).given.tolist() == [*b"RY-\0"]


@pytest.mark.parametrize("name", CALLER_SETTINGS)
def test_settings_of_the_caller_change_nothing(name):
    def results() -> tuple[object, ...]:
        found = bio.align(
            ["ACGTNR", "GGG"], ["ACTTNR", "GG"], unknown="N", traceback=True, device="cpu"
        )
        with CALLER_SETTINGS[name]():
            return found.score.tolist(), found.cigar, found.identity.tolist(), str(found)

    expected = results()
    with CALLER_SETTINGS[name]():
        assert results() == expected


def test_where_nothing_matches_semiglobal_scores_are_negative():
    """At least one residue or base of each sequence precedes the free ends, as in parasail."""
    assert align(["AAAA"], ["CCCC"], mode="semiglobal").score.tolist() == [-3]
    far = align(["AAAA"], ["CCCC"], mode="semiglobal", mismatch=-100, traceback=True)
    assert (far.score.tolist(), far.cigar) == ([-5], ["1I"])
    assert align(["AAAA"], [""], mode="semiglobal").score.tolist() == [0]
    assert align(["AAAA"], ["CCCC"], mode="local").score.tolist() == [0]
