"""Edit distances against the reference aligner, and their refusals."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.alignment.edit_distance import DEFAULT_LIMITS, Limits, edit_distance
from mlff_triton.kernels.alignment.reference.alignment import alignment
from mlff_triton.kernels.alignment.types import PAD, Gaps, Pairs
from tests.support.sequence_pairs import pairs_of

LENGTHS = [(0, 0), (0, 5), (7, 0), (1, 1), (32, 31), (33, 40), (20, 36)]


def random_pairs(lengths, n_letters, seed=0):
    """Return pairs in which every other target is its query, shifted by one symbol."""
    generator = torch.Generator().manual_seed(seed)

    def sequence(length):
        return torch.randint(n_letters, (length,), generator=generator).tolist()

    queries = [sequence(length) for length, _ in lengths]
    targets = [
        (queries[k][1:] * (k % 2) + sequence(length))[:length]
        for k, (_, length) in enumerate(lengths)
    ]
    return pairs_of(queries, targets)


def check(pairs, device, n_letters=256, limits=DEFAULT_LIMITS):
    costs = torch.eye(n_letters, dtype=torch.int64) - 1
    want = -alignment(pairs, costs, Gaps(1, 1)).score
    on_device = Pairs(*(tensor.to(device) for tensor in pairs))
    got = edit_distance(on_device, n_letters, limits=limits)
    assert got.dtype == torch.int32
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("n_letters", [1, 4, 24])
def test_distances_of_all_sizes_at_once(n_letters, device):
    check(random_pairs(LENGTHS, n_letters), device, n_letters)


@pytest.mark.parametrize(("n", "length"), [(1, 0), (33, 20), (2, 65)])
def test_distances_of_one_size(n, length, device):
    check(random_pairs([(length, length + 3)] * n, 4), device, 4)


@pytest.mark.parametrize(
    ("n", "shortest", "limits"),
    [
        (5, 65, Limits(programs=0)),  # one lane with three words
        (5, 65, Limits(words=2, programs=0)),  # two lanes with two words
        (2, 515, Limits(words=1)),  # 32 lanes with one word
    ],
)
def test_lanes_share_the_words_of_a_pair(n, shortest, limits, device):
    lengths = [(shortest + k, shortest + 6 - 2 * k) for k in range(n)]
    check(random_pairs(lengths, 4), device, 4, limits)


def test_strips_of_long_sequences(device):
    """Pairs have two lanes of one word, and memory suffices for two pairs at a time."""
    limits = Limits(sizes=(1, 2), words=1, lanes=2, edge_bytes=160)
    check(random_pairs([(66, 70), (9, 9), (75, 65), (72, 77)], 4), device, 4, limits)


def test_warps_of_sixty_four_lanes(device, monkeypatch):
    """On AMD GPUs, warps have 64 lanes, and shifts are not replaced by products."""
    monkeypatch.setattr("torch.version.hip", "6")
    check(random_pairs(LENGTHS, 4), device, 4)


def test_the_alphabet_is_read_from_the_letters(device):
    pairs = pairs_of([[2, 0, 3, 0, 19]], [[2, 3, 0, 3]])
    pairs.letters[-PAD:] = 7
    assert edit_distance(Pairs(*(tensor.to(device) for tensor in pairs))).tolist() == [2]


def test_sequences_may_share_letters(device):
    letters, *_ = pairs_of([[0, 1, 2, 3, 0, 1]], [[]])
    first, length = torch.tensor([0, 2, 1]) + PAD, torch.tensor([6, 3, 4])
    check(Pairs(letters, first, length, first.flip(0), length.flip(0)), device)


def test_no_pairs(device):
    check(pairs_of([], []), device)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("letters", torch.zeros(200), "uint8"),
        ("query_length", torch.tensor([3], dtype=torch.int32), "int64"),
        ("target_start", torch.tensor([64, 64]), r"\[1\]"),
    ],
)
def test_wrong_inputs(name, wrong, message, device):
    pairs = pairs_of([[0, 1]], [[1]])._replace(**{name: wrong})
    with pytest.raises(InputError, match=message):
        edit_distance(Pairs(*(tensor.to(device) for tensor in pairs)))
