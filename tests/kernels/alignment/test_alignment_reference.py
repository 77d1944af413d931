"""The reference aligner against parasail, and its alignments against their own scores.

With linear gap penalties, parasail 1.3.4 is correct in its prefix scans, and wrong in its striped
and diagonal functions.
"""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import parasail
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlff_triton.kernels.alignment.reference.alignment import alignment
from mlff_triton.kernels.alignment.types import (
    DELETION,
    GLOBAL,
    INSERTION,
    MATCH,
    MISMATCH,
    PAD,
    Aligned,
    Free,
    Gaps,
    Pairs,
)
from tests.support.sequence_pairs import pairs_of

BASES, RESIDUES = "ACGTN", "ARNDCQEGHILKMFPSTWYVBZX*"
DNA = parasail.matrix_create(BASES, 2, -3)
MATRICES = {BASES: DNA, RESIDUES: parasail.blosum62}
MODES = {
    parasail.nw_scan_32: GLOBAL,
    parasail.sw_scan_32: Free(anywhere=True),
    parasail.sg_scan_32: Free(True, True, True, True),
    parasail.sg_qb_scan_32: Free(query_begin=True),
    parasail.sg_qe_scan_32: Free(query_end=True),
    parasail.sg_db_scan_32: Free(target_begin=True),
    parasail.sg_de_scan_32: Free(target_end=True),
    parasail.sg_qx_scan_32: Free(query_begin=True, query_end=True),
    parasail.sg_dx_scan_32: Free(target_begin=True, target_end=True),
    parasail.sg_qb_de_scan_32: Free(query_begin=True, target_end=True),
    parasail.sg_qe_db_scan_32: Free(query_end=True, target_begin=True),
}
FREE_ENDS = [Free(*sides) for sides in product([False, True], repeat=4)] + [Free(anywhere=True)]
GAPS = [Gaps(5, 2), Gaps(3, 3), Gaps(11, 1), Gaps(10, 0), Gaps(0, 0)]


def scores_of(letters: str) -> torch.Tensor:
    """Return parasail's matrix for these residues or bases."""
    matrix = MATRICES[letters]
    rows = [matrix.mapper[ord(letter)] for letter in letters]
    return torch.from_numpy(matrix.matrix[rows][:, rows].astype("int64"))


def encoded(queries: list[str], targets: list[str], letters: str) -> Pairs:
    return pairs_of(
        *([[letters.index(x) for x in text] for text in texts] for texts in (queries, targets))
    )


def align(queries, targets, letters=BASES, gaps=GAPS[0], free=GLOBAL, **options) -> Aligned:
    return alignment(encoded(queries, targets, letters), scores_of(letters), gaps, free, **options)


def cigars(aligned: Aligned) -> list[str]:
    operations, lengths = aligned.runs.operation.tolist(), aligned.runs.length.tolist()
    runs = [f"{k}{'=XID'[o]}" for o, k in zip(operations, lengths, strict=True)]
    return ["".join(runs[a:b]) for a, b in pairwise(aligned.runs.start.tolist())]


def assert_sound(aligned, queries, targets, letters, gaps, free, band=None):
    """Assert that operations lead from begin to end, distinguish = from X, and give the score."""
    matrix = scores_of(letters)
    operations, lengths = aligned.runs.operation.tolist(), aligned.runs.length.tolist()
    for p, (first, last) in enumerate(pairwise(aligned.runs.start.tolist())):
        i, j = aligned.begin[p].tolist()
        score, before = 0, None
        for operation, length in zip(operations[first:last], lengths[first:last], strict=True):
            assert operation != before
            assert length > 0
            before = operation
            if operation in (INSERTION, DELETION):
                score -= gaps.open + (length - 1) * gaps.extend
            for _ in range(length):
                i += operation != DELETION
                j += operation != INSERTION
                if operation in (MATCH, MISMATCH):
                    a, b = queries[p][i - 1], targets[p][j - 1]
                    assert (a == b) == (operation == MATCH)
                    score += int(matrix[letters.index(a), letters.index(b)])
                assert band is None or abs(i - j) <= band
        assert score == aligned.score[p]
        assert [i, j] == aligned.end[p].tolist()
        if not free.anywhere:
            assert_left_out(aligned.begin[p].tolist(), free.query_begin, free.target_begin)
            rest = [len(queries[p]) - i, len(targets[p]) - j]
            assert_left_out(rest, free.query_end, free.target_end)


def assert_left_out(letters, query_is_free, target_is_free):
    """Assert that only one sequence has unaligned symbols at an end, and only a free end."""
    query, target = letters
    assert query == 0 or (query_is_free and target == 0)
    assert target == 0 or target_is_free


def random_texts(seed: int, n: int, lengths: range) -> list[str]:
    draw = np.random.default_rng(seed)
    return ["".join(draw.choice(list("ACGT"), size)) for size in draw.choice(lengths, n)]


def text(letters: str) -> st.SearchStrategy[str]:
    return st.text(letters, min_size=1, max_size=24)


def related(letters: str) -> st.SearchStrategy[tuple[str, str]]:
    """Return a strategy for two sequences that share parts."""
    parts = st.lists(text(letters), min_size=1, max_size=3)
    shared = st.tuples(text(letters), parts, parts).map(
        lambda x: (x[0].join(["", *x[1]]), "".join(x[2]) + x[0])
    )
    return shared | st.tuples(text(letters), text(letters))


@pytest.mark.parametrize("letters", [BASES, RESIDUES], ids=["dna", "blosum62"])
@pytest.mark.parametrize("function", MODES, ids=lambda function: function.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_scores_agree_with_parasail(function, letters, data):
    some = data.draw(st.lists(related(letters), min_size=1, max_size=6))
    queries, targets = map(list, zip(*some, strict=True))
    gaps, free = data.draw(st.sampled_from(GAPS)), MODES[function]
    aligned = align(queries, targets, letters, gaps, free, traceback=True)
    expected = [function(a, b, *gaps, MATRICES[letters]).score for a, b in some]
    assert aligned.score.tolist() == expected
    assert_sound(aligned, queries, targets, letters, gaps, free)
    scores = align(queries, targets, letters, gaps, free)
    assert torch.equal(scores.score, aligned.score)
    assert scores[1:] == (None, None, None)


@pytest.mark.parametrize("function", MODES, ids=lambda function: function.__name__)
def test_adversarial_pairs(function):
    (long,) = random_texts(1, 1, range(300, 301))
    some = [
        ("A", "A"),
        ("A", "C"),
        ("A" * 70, "C" * 70),  # all gaps or all mismatches
        ("ACGT" * 20, "ACGT" * 17),  # repeats
        ("A", long),  # very unequal
        (long, "N"),
        ("N" * 30, "N" * 30),
        (long, long[100:] + long[:100]),
        (long, long[:150] + "ACGTACGT" + long[150:]),
    ]
    queries, targets = map(list, zip(*some, strict=True))
    for gaps in GAPS:
        aligned = align(queries, targets, BASES, gaps, MODES[function], traceback=True)
        expected = [function(a, b, *gaps, DNA).score for a, b in some]
        assert aligned.score.tolist() == expected
        assert_sound(aligned, queries, targets, BASES, gaps, MODES[function])


@pytest.mark.parametrize("free", FREE_ENDS)
def test_empty_sequences(free):
    """Empty sequences, which parasail refuses, are aligned by one gap unless an end is free."""
    queries, targets = ["", "", "ACG"], ["", "ACG", ""]
    aligned = align(queries, targets, free=free, traceback=True)
    of_target = 0 if free.target_begin or free.target_end or free.anywhere else -9
    of_query = 0 if free.query_begin or free.query_end or free.anywhere else -9
    assert aligned.score.tolist() == [0, of_target, of_query]
    assert cigars(aligned) == ["", "3D" if of_target else "", "3I" if of_query else ""]
    assert_sound(aligned, queries, targets, BASES, GAPS[0], free)


@pytest.mark.parametrize("traceback", [False, True])
def test_no_pairs(traceback):
    aligned = align([], [], traceback=traceback)
    assert aligned.score.shape == (0,)
    assert aligned.score.dtype == torch.int32
    if traceback:
        assert aligned.begin.shape == aligned.end.shape == (0, 2)
        assert aligned.runs.start.tolist() == [0]
        assert len(aligned.runs.operation) == len(aligned.runs.length) == 0


def test_types():
    aligned = align(["ACGT", "AC"], ["ACT", "GG"], traceback=True)
    assert aligned.begin.dtype == aligned.end.dtype == torch.int32
    dtypes = [part.dtype for part in aligned.runs]
    assert dtypes == [torch.int64, torch.uint8, torch.int32]
    assert cigars(aligned) == ["2=1I1=", "2X"]


@pytest.mark.parametrize(
    ("query", "target", "free", "cigar"),
    [
        ("AA", "A", GLOBAL, "1I1="),  # from the end, a match before a gap
        ("CA", "GA", GLOBAL, "1X1="),
        ("AAC", "TTC", GLOBAL, "2X1="),
        ("A", "CACAC", Free(anywhere=True), "1="),
    ],
)
def test_ties(query, target, free, cigar):
    aligned = align([query], [target], free=free, traceback=True)
    assert cigars(aligned) == [cigar]


def test_a_deletion_goes_before_an_insertion_from_the_end():
    matrix = torch.tensor([[2, -9], [-9, 2]])
    pairs = encoded(["A"], ["C"], "AC")
    aligned = alignment(pairs, matrix, Gaps(1, 1), traceback=True)
    assert cigars(aligned) == ["1I1D"]


def test_the_first_of_equal_ends_is_chosen():
    aligned = align(["CAC"], ["GAGAG"], free=Free(anywhere=True), traceback=True)
    assert aligned.begin.tolist() == [[1, 1]]
    assert aligned.end.tolist() == [[2, 2]]


@pytest.mark.parametrize("free", FREE_ENDS)
def test_a_wide_band_changes_nothing(free):
    queries, targets = random_texts(2, 20, range(12)), random_texts(3, 20, range(12))
    wide = align(queries, targets, free=free, band=12, traceback=True)
    whole = align(queries, targets, free=free, traceback=True)
    assert torch.equal(wide.score, whole.score)
    assert cigars(wide) == cigars(whole)


@pytest.mark.parametrize("free", [GLOBAL, Free(True, True, True, True), Free(anywhere=True)])
def test_a_band_is_kept(free):
    queries = random_texts(4, 40, range(20, 21))
    targets = [("AC" + query)[:19] for query in queries]
    whole = align(queries, targets, free=free)
    for band in (1, 2, 3):
        aligned = align(queries, targets, free=free, band=band, traceback=True)
        assert_sound(aligned, queries, targets, BASES, GAPS[0], free, band)
        assert (aligned.score <= whole.score).all()


def test_a_band_of_none_has_no_gaps():
    aligned = align(["ACGTAC"], ["CGTACA"], band=0, traceback=True)
    assert aligned.score.tolist() == [-18]
    assert cigars(aligned) == ["6X"]


def test_portions_come_back_in_order():
    queries, targets = random_texts(2, 50, range(30)), random_texts(3, 50, range(30))
    together = align(queries, targets, traceback=True)
    apart = align(queries, targets, traceback=True, cells_per_table=1000)
    alone = align(queries, targets, traceback=True, cells_per_row=1)
    for aligned in (apart, alone):
        assert torch.equal(aligned.score, together.score)
        assert torch.equal(aligned.begin, together.begin)
        assert torch.equal(aligned.end, together.end)
        assert cigars(aligned) == cigars(together)


def test_shared_letters_and_other_orders():
    """Sequences may start in any order, and may overlap."""
    pairs = encoded(["ACGTACGT"], ["ACGTACGT"], BASES)
    start = torch.tensor([PAD + 4, PAD, PAD + 2])
    length = torch.tensor([4, 8, 2])
    aligned = alignment(
        Pairs(pairs.letters, start, length, start, length), scores_of(BASES), GAPS[0]
    )
    assert aligned.score.tolist() == [8, 16, 4]
