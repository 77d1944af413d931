"""Pairs of sequences to align, and the scores of given alignments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mlff_triton.kernels.alignment.types import DELETION, INSERTION, PAD, Aligned, Gaps, Pairs

UNUSED = 255


def pairs_of(queries: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Pairs:
    """Return pairs of sequences of codes, surrounded by unused bytes."""
    sequences = [*queries, *targets]
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int64)
    letters = np.array([code for sequence in sequences for code in sequence], dtype=np.uint8)
    return _laid_out(letters, lengths, len(queries))


def _laid_out(letters: np.ndarray, lengths: Tensor, n: int) -> Pairs:
    padded = torch.from_numpy(np.pad(letters, PAD, constant_values=UNUSED))
    start = PAD + lengths.cumsum(0) - lengths
    return Pairs(padded, start[:n], lengths[:n], start[n:], lengths[n:])


def related_pairs(lengths: Sequence[int], n_letters: int, seed: int = 0) -> Pairs:
    """Return a random sequence of each length and a mutated copy of it, in either order.

    The copy has substitutions, deletions, repeats and one longer deletion. In every third pair, the
    copy is unrelated; in every fifth, it has each residue or base three times.
    """
    draw = np.random.default_rng(seed)
    length, n = np.array(lengths, dtype=np.int64), len(lengths)
    pair = np.repeat(np.arange(n), length)
    position = np.arange(len(pair)) - np.repeat(length.cumsum() - length, length)
    letters = draw.integers(n_letters, size=len(pair))
    lost = draw.integers(length + 1)
    kept = lost + draw.integers(length // 2 + 1)
    copies = draw.choice(3, len(pair), p=[0.05, 0.9, 0.05]) * np.where(pair % 5 == 0, 3, 1)
    copies[(position >= lost[pair]) & (position < kept[pair])] = 0
    replaced = draw.random(len(pair)) < np.where(pair % 3 == 0, 1, 0.05)
    others = np.where(replaced, draw.integers(n_letters, size=len(pair)), letters)
    codes = np.concatenate([letters, np.repeat(others, copies)]).astype(np.uint8)
    of_others = np.bincount(pair, copies, n).astype(np.int64)
    pairs = _laid_out(codes, torch.from_numpy(np.concatenate([length, of_others])), n)
    swapped = torch.from_numpy(draw.random(n) < 0.5)
    starts = pairs.query_start, pairs.target_start
    both = pairs.query_length, pairs.target_length
    return Pairs(
        pairs.letters,
        torch.where(swapped, *reversed(starts)),
        torch.where(swapped, *reversed(both)),
        torch.where(swapped, *starts),
        torch.where(swapped, *both),
    )


def joined(*parts: Pairs) -> Pairs:
    """Concatenate pairs."""
    letters = torch.cat([part.letters[PAD:-PAD] for part in parts])
    offset, indices = 0, []
    for part in parts:
        moved = part.query_start + offset, part.target_start + offset
        indices.append((moved[0], part.query_length, moved[1], part.target_length))
        offset += len(part.letters) - 2 * PAD
    padded = torch.nn.functional.pad(letters, (PAD, PAD), value=UNUSED)
    return Pairs(padded, *(torch.cat(index) for index in zip(*indices, strict=True)))


def rescored(pairs: Pairs, matrix: Tensor, gaps: Gaps, aligned: Aligned) -> tuple[Tensor, Tensor]:
    """Return scores int64 [n] and ends [n, 2], computed from the operations and beginnings."""
    start, operation, length = aligned.runs
    n, device = len(aligned.score), start.device
    pair_of_run = torch.arange(n, device=device).repeat_interleave(start.diff())
    is_gap = (operation == INSERTION) | (operation == DELETION)
    cost = (gaps.open + gaps.extend * (length.long() - 1)) * is_gap
    pair, step = (x.repeat_interleave(length) for x in (pair_of_run, operation))
    moves = torch.stack([step != DELETION, step != INSERTION], 1).long()
    zero = moves.new_zeros(n, 2)
    end = aligned.begin + zero.index_add(0, pair, moves)
    before = moves.cumsum(0) - moves  # in all pairs; below, in the same pair
    steps = zero[:, 0].index_add(0, pair_of_run, length.long())
    first = (steps.cumsum(0) - steps)[pair]
    position = aligned.begin[pair] + before - before[first]
    diagonal = moves.all(1)
    position, pair = position[diagonal], pair[diagonal]
    a = pairs.letters[pairs.query_start[pair] + position[:, 0]].long()
    b = pairs.letters[pairs.target_start[pair] + position[:, 1]].long()
    assert torch.equal(a != b, step[diagonal].bool())
    score = zero[:, 0].index_add(0, pair, matrix.to(device)[a, b])
    return score.index_add(0, pair_of_run, -cost), end
