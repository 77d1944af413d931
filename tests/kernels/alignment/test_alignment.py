"""The aligner against its reference: scores, ends and operations are equal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mlff_triton.errors import InputError
from mlff_triton.kernels.alignment import lanes
from mlff_triton.kernels.alignment.alignment import alignment
from mlff_triton.kernels.alignment.plan import DEFAULT_TILING, Tiling, buckets
from mlff_triton.kernels.alignment.reference import alignment as reference
from mlff_triton.kernels.alignment.types import GLOBAL, PAD, Aligned, Free, Gaps, Pairs
from tests.support.sequence_pairs import joined, pairs_of, related_pairs, rescored

GPU = torch.cuda.is_available()
LENGTHS = [0, 1, 2, 9, 33, 60, 100, 128, 250] * 20 if GPU else [0, 1, 4, 7, 10] * 2
LONG = 3000 if GPU else 20  # lengths that need several strips
# Interpreted: lanes of four columns, four of which cover a strip, and tiles of four steps.
TILING = DEFAULT_TILING if GPU else Tiling(widths=(4,), lanes=(4,), chunk=4)
EXAMPLES = 50 if GPU else 3

LOCAL, OPEN_ENDS = Free(anywhere=True), Free(True, True, True, True)
MODES = {"global": GLOBAL, "local": LOCAL, "semiglobal": OPEN_ENDS}
AFFINE, LINEAR = Gaps(5, 2), Gaps(3, 3)
DNA = 5 * torch.eye(4, dtype=torch.int64) - 3
DNA_WITH_N = torch.nn.functional.pad(DNA, (0, 1, 0, 1), value=-3)
_NOISE = torch.randint(-4, 3, (20, 20), generator=torch.Generator().manual_seed(0))
PROTEIN = torch.minimum(_NOISE, _NOISE.T) + 9 * torch.eye(20, dtype=torch.int64)
LARGE = 1000 * PROTEIN, Gaps(11000, 1000)  # needs 32 bits

CASES = {
    "affine": (DNA, AFFINE),
    "linear": (DNA, LINEAR),
    "free gaps": (DNA, Gaps(0, 0)),
    "gaps of constant cost": (DNA, Gaps(7, 0)),
    "N": (DNA_WITH_N, AFFINE),
    "protein": (PROTEIN, Gaps(11, 1)),
    "large": LARGE,
}


def some_pairs(n_letters: int) -> Pairs:
    """Return an odd number of pairs, some of them with empty sequences."""
    empty = pairs_of([[], [], [0, 1, 0]], [[], [1, 2], []])
    return joined(related_pairs(LENGTHS, n_letters), empty)


def on(pairs: Pairs, device: str) -> Pairs:
    return Pairs(*(tensor.to(device) for tensor in pairs))


def check(
    pairs, device, matrix=DNA, gaps=AFFINE, free=GLOBAL, *, memory_limit=2**31, **options
) -> Aligned:
    pairs = on(pairs, device)
    limits = {"tiling": TILING, "memory_limit": memory_limit}
    got = alignment(pairs, matrix, gaps, free, **limits, **options)
    want = reference.alignment(pairs, matrix, gaps, free, **options)
    assert_same(got.score, want.score)
    if options.get("traceback"):
        assert_same(got.end, want.end)
        assert_same(got.begin, want.begin)
        for part, expected in zip(got.runs, want.runs, strict=True):
            assert_same(part, expected)
    else:
        assert got[1:] == (None, None, None)
    return got


def assert_same(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        ("affine", "global"),
        ("affine", "local"),
        ("affine", "semiglobal"),
        ("protein", "local"),
        ("protein", "semiglobal"),
    ],
)
def test_scores(case, mode, device):
    matrix, gaps = CASES[case]
    check(some_pairs(len(matrix)), device, matrix, gaps, MODES[mode])


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        ("affine", "global"),
        ("affine", "semiglobal"),
        ("linear", "global"),
        ("free gaps", "semiglobal"),
        ("gaps of constant cost", "global"),
        ("N", "local"),
        ("protein", "local"),
        ("large", "global"),
        ("large", "local"),
    ],
)
def test_alignments(case, mode, device):
    matrix, gaps = CASES[case]
    check(some_pairs(len(matrix)), device, matrix, gaps, MODES[mode], traceback=True)


@pytest.mark.parametrize(
    "free",
    [
        Free(query_begin=True, target_end=True),
        Free(query_end=True, target_begin=True),
        *([Free(**{end: True}) for end in Free._fields[:4]] if GPU else []),
    ],
    ids=lambda free: "+".join(end for end, is_free in free._asdict().items() if is_free),
)
def test_free_ends(free, device):
    check(some_pairs(4), device, free=free, traceback=True)


@pytest.mark.parametrize(("case", "mode"), [("affine", "semiglobal"), ("protein", "local")])
def test_one_pair_per_lane(case, mode, device, monkeypatch):
    """On GPUs without packed 16-bit instructions, a lane processes one pair."""
    monkeypatch.setattr(lanes, "packs", lambda _: False)
    matrix, gaps = CASES[case]
    check(some_pairs(len(matrix)), device, matrix, gaps, MODES[mode], traceback=True)


@pytest.mark.parametrize("free", MODES.values(), ids=MODES)
def test_bands(free, device):
    length = 300 if GPU else 9
    bases = torch.randint(4, (length,)).tolist()
    queries = [bases[k:] for k in range(4)]
    targets = [bases[: length // 2 - k] + bases[length // 2 :] for k in range(4)]
    for band in (3, 40) if GPU else (3,):
        check(pairs_of(queries, targets), device, free=free, band=band, traceback=True)


@pytest.mark.parametrize(
    ("case", "mode"),
    [("affine", "global"), ("protein", "local"), ("affine", "semiglobal"), ("large", "semiglobal")],
)
def test_strips(case, mode, device):
    matrix, gaps = CASES[case]
    a, b = torch.randint(4, (2, LONG)).tolist()
    pairs = pairs_of([a[2 : LONG // 3], [], a[LONG // 2 :][: LONG // 4]], [a, b, b[2:]])
    check(pairs, device, matrix, gaps, MODES[mode], traceback=True)
    if GPU:
        pairs = joined(pairs, related_pairs([LONG // 4, LONG // 2, LONG], len(matrix), seed=1))
        check(pairs, device, matrix, gaps, MODES[mode])


def test_very_unequal_lengths(device):
    few, many = [1], [0, 3, 1, 2] * (LONG // 4)
    check(pairs_of([few, many], [many, few]), device, traceback=True)


@pytest.mark.parametrize("traceback", [False, True])
def test_alike_and_unlike(traceback, device):
    """Repeats score well, and the best alignment of unrelated sequences can be gaps alone."""
    matrix = 32 * torch.eye(4, dtype=torch.int64) - 30
    queries = [[0] * 12, [0, 1] * 5, [2] * 9, [3]]
    targets = [[1] * 10, [0, 1] * 4, [2] * 12, [3]]
    got = check(pairs_of(queries, targets), device, matrix, traceback=traceback)
    assert got.score[0] == -AFFINE.open * 2 - AFFINE.extend * 20


def test_nothing_but_empty_sequences(device):
    check(pairs_of([[], []], [[], []]), device, DNA_WITH_N, traceback=True)


def test_the_memory_limit_splits_the_work(device):
    pairs = related_pairs([4, 2, 3] * 6, 4)
    check(pairs, device, traceback=True, memory_limit=1)


@pytest.mark.parametrize("traceback", [False, True])
def test_no_pairs(traceback, device):
    check(pairs_of([], []), device, traceback=traceback)


def test_pairs_of_one_size_stay_in_their_order(device):
    queries, targets = torch.randint(4, (2, 17, 5)).tolist()
    check(pairs_of(queries, targets), device, traceback=True)


def test_sequences_may_share_letters(device):
    letters, *_ = pairs_of([[0, 1, 2, 3, 0, 1, 2, 3]], [[]])
    start, length = PAD + torch.tensor([4, 0, 2]), torch.tensor([4, 8, 2])
    check(Pairs(letters, start, length, start.flip(0), length.flip(0)), device, free=OPEN_ENDS)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(
    ("match", "gaps", "free", "length"),
    [
        (121, Gaps(8010, 0), LOCAL, 6),
        (121, Gaps(8010, 0), OPEN_ENDS, 6),
        pytest.param(120, Gaps(1, 0), GLOBAL, 273, marks=pytest.mark.gpu),
    ],
)
def test_the_largest_scores_of_sixteen_bits(match, gaps, free, length, more, device):
    """Besides the bias, 16 bits hold the scores of this many matches, and not of one more."""
    length += more
    same, other = [0] * length, [1, 0] * (length // 2) + [0] * (length % 2)
    matrix = match * torch.eye(4, dtype=torch.int64)
    pairs = pairs_of([same, same], [same, other])
    got = check(pairs, device, matrix, gaps, free)
    assert got.score[0] == match * length
    (bucket,) = buckets(pairs, matrix, gaps, free, packs=True, tiling=TILING)
    assert bucket.packed == (not more)


def test_scores_that_do_not_fit_are_refused(device):
    matrix = DNA * 2**26
    with pytest.raises(InputError, match="do not fit in 32 bits"):
        alignment(on(related_pairs([9], 4), device), matrix, AFFINE)


@settings(max_examples=EXAMPLES)
@given(
    scores=st.lists(st.integers(-20, 20), min_size=16, max_size=16),
    scale=st.sampled_from([1, 1, 300]),
    gaps=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    free=st.sampled_from(list(MODES.values())),
    seed=st.integers(0, 99),
)
def test_any_scores(scores, scale, gaps, free, seed):
    matrix = scale * torch.tensor(scores).view(4, 4)
    costs = Gaps(*sorted([scale * cost for cost in gaps], reverse=True))
    pairs = related_pairs(LENGTHS[:5] * 3, 4, seed)
    check(pairs, "cuda" if GPU else "cpu", matrix + matrix.T, costs, free, traceback=True)


@pytest.mark.gpu
@pytest.mark.parametrize("free", MODES.values(), ids=MODES)
def test_many_pairs(free, device):
    """Many pairs fill the GPU and use lanes of every width."""
    lengths = torch.randint(301, (100_000,)).tolist()
    pairs = related_pairs(lengths, 4)
    pairs.letters[PAD + 1 : -PAD : 1001] = 4
    check(pairs, device, DNA_WITH_N, AFFINE, free)


@pytest.mark.gpu
def test_many_proteins(device):
    pairs = related_pairs(torch.randint(301, (10_000,)).tolist(), 20)
    check(pairs, device, PROTEIN, Gaps(11, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("free", MODES.values(), ids=MODES)
def test_alignments_score_what_is_reported(free, device):
    pairs = on(related_pairs(torch.randint(600, (2000,)).tolist(), 4), device)
    aligned = alignment(pairs, DNA, AFFINE, free, traceback=True)
    score, end = rescored(pairs, DNA, AFFINE, aligned)
    assert_same(aligned.score, score.int())
    assert_same(aligned.end, end.int())


@pytest.mark.gpu
def test_long_sequences(device):
    check(related_pairs([20_000], 4, seed=1), device)
