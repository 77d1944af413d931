"""Cases of the alignment benchmark, with sequences that differ from run to run."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlff_triton.bio.alignment.scoring import AMINO_ACIDS, BASES, Scoring
from mlff_triton.kernels.alignment.types import PAD, Pairs

KEPT, REPLACED, DELETED, INSERTED = 0.9, 0.05, 0.025, 0.025  # fractions in similar sequences
MOST_CHECKED, CHECKED_CELLS = 256, 2 * 10**8  # most pairs and cells compared with the truth
SOME = 2**18  # pairs for methods that cannot align all of them in reasonable time


class Scheme(NamedTuple):
    """Alphabet of the sequences, and scoring options of `mlff_triton.bio.align`."""

    letters: str
    gap_open: int
    gap_extend: int
    match: int = 2
    mismatch: int = -3
    matrix: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of `mlff_triton.bio.align`."""
        return dict(list(self._asdict().items())[1:])

    @property
    def scoring(self) -> Scoring:
        """Scoring for kernels, whose alphabet begins with that of the sequences."""
        return Scoring.of(**self.options)

    @property
    def scores(self) -> Tensor:
        """Substitution matrix of the sequences' alphabet, int64 [A, A]."""
        n = len(self.letters)
        return self.scoring.matrix[:n, :n]


AFFINE = Scheme(BASES, 5, 2)
LINEAR = Scheme(BASES, 2, 2)
PROTEIN = Scheme(AMINO_ACIDS, 11, 1, matrix="BLOSUM62")
EDIT = Scheme(BASES, 1, 1, match=0, mismatch=-1)  # scores are minus the edit distance


@dataclass(frozen=True)
class AlignmentCase:
    """Random sequences and an alignment task.

    Attributes
    ----------
    name : str
        Name in the results.
    scheme : Scheme
        Alphabet and scoring.
    count : int
        Number of queries, and of targets.
    shortest, longest : int
        Range of the uniformly distributed lengths.
    pairing : {"all", "zip"}
        Every query with every target, or the k-th with the k-th.
    mode : {"global", "local", "semiglobal"}
        Alignment mode.
    traceback : bool
        If True, CIGAR strings are computed.
    similar : bool
        If True, targets are queries with a tenth of their residues or bases changed.
    published : bool
        If True, the case is one of the published Triton kernel's, compared with PyTorch.
    """

    name: str
    scheme: Scheme
    count: int
    shortest: int
    longest: int
    pairing: str = "all"
    mode: str = "global"
    traceback: bool = False
    similar: bool = False
    published: bool = False

    @property
    def n_pairs(self) -> int:
        """Number of pairs."""
        return self.count**2 if self.pairing == "all" else self.count

    @property
    def most_cells(self) -> int:
        """Most cells of a pair."""
        return self.longest**2


def _equal(name: str, scheme: Scheme, length: int, count: int, **options: Any) -> AlignmentCase:
    return AlignmentCase(f"{name}-{length}", scheme, count, length, length, **options)


def _published(batch: int, length: int) -> AlignmentCase:
    return _equal(f"batch-{batch}", AFFINE, length, batch, pairing="zip", published=True)


CIGAR = {"pairing": "zip", "traceback": True}
BATCHES, LENGTHS = (32, 128, 512, 1024), (32, 128, 256, 512)
MOST_WANTED = (  # run first, in case time runs out
    _equal("dna", AFFINE, 128, 1024),
    _equal("dna", AFFINE, 512, 512),
    _equal("dna", AFFINE, 1024, 512),
    _equal("dna-linear", LINEAR, 512, 512),
    _equal("protein", PROTEIN, 350, 512),
    _equal("edit", EDIT, 512, 512),
    _equal("dna-cigar-random", AFFINE, 1000, 10_000, **CIGAR),
    _equal("dna-cigar-similar", AFFINE, 1000, 10_000, similar=True, **CIGAR),
    _equal("dna-two", AFFINE, 100_000, 1),
    _published(1024, 512),
)
EVERY = (
    _equal("edit", EDIT, 128, 1024),
    _equal("edit", EDIT, 1024, 512),
    _equal("dna", AFFINE, 150, 1024),
    AlignmentCase("dna-mixed-500", AFFINE, 512, 50, 500),
    _equal("dna-zip", AFFINE, 150, 2**19, pairing="zip"),
    _equal("dna-zip", AFFINE, 512, 2**18, pairing="zip"),
    _equal("dna-local", AFFINE, 512, 512, mode="local"),
    _equal("dna-semiglobal", AFFINE, 512, 512, mode="semiglobal"),
    *(_published(batch, length) for length in LENGTHS for batch in BATCHES),
)
CASES = {case.name: case for case in (*MOST_WANTED, *EVERY)}


class Sequences(NamedTuple):
    """Codes of sequences, uint8, one sequence after another, and their lengths, int64 [n]."""

    codes: np.ndarray
    lengths: np.ndarray

    @property
    def start(self) -> np.ndarray:
        """First index of each sequence, int64 [n]."""
        return self.lengths.cumsum() - self.lengths

    def texts(self, letters: str) -> list[str]:
        """Return the sequences as strings."""
        text = np.frombuffer(letters.encode(), np.uint8)[self.codes].tobytes().decode()
        ranges = zip(self.start.tolist(), self.lengths.tolist(), strict=True)
        return [text[first : first + length] for first, length in ranges]


@dataclass(frozen=True, eq=False)
class Problem:
    """A case with its sequences.

    Attributes
    ----------
    case : AlignmentCase
        Alignment task.
    queries, targets : Sequences
        Sequences to align.
    some : int64 [m]
        Random sample of pairs, without repeats. The first `n_checked` are checked.
    """

    case: AlignmentCase
    queries: Sequences
    targets: Sequences
    some: np.ndarray

    @property
    def n_checked(self) -> int:
        """Number of pairs compared with the truth."""
        return max(1, min(len(self.some), MOST_CHECKED, CHECKED_CELLS // self.case.most_cells))

    @cached_property
    def texts(self) -> tuple[list[str], list[str]]:
        """Queries and targets as strings."""
        letters = self.case.scheme.letters
        return self.queries.texts(letters), self.targets.texts(letters)

    def partners(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the queries and targets of pairs."""
        if self.case.pairing == "zip":
            return pairs, pairs
        return np.divmod(pairs, len(self.targets.lengths))

    def texts_of(self, pairs: np.ndarray) -> list[tuple[str, str]]:
        """Return the query and target of each pair as strings."""
        queries, targets = self.texts
        indices = zip(*(side.tolist() for side in self.partners(pairs)), strict=True)
        return [(queries[k], targets[m]) for k, m in indices]

    def cells(self, pairs: np.ndarray) -> int:
        """Count the cells in the tables of pairs."""
        query, target = self.partners(pairs)
        return int((self.queries.lengths[query] * self.targets.lengths[target]).sum())

    def on(self, device: torch.device, pairs: np.ndarray | None = None) -> Pairs:
        """Return pairs on a device, by default all, in the form that kernels take."""
        pairs = np.arange(self.case.n_pairs) if pairs is None else pairs
        query, target = self.partners(pairs)
        pad = np.zeros(PAD, np.uint8)
        letters = np.concatenate([pad, self.queries.codes, self.targets.codes, pad])
        arrays = (
            letters,
            PAD + self.queries.start[query],
            self.queries.lengths[query],
            PAD + len(self.queries.codes) + self.targets.start[target],
            self.targets.lengths[target],
        )
        return Pairs(*(torch.from_numpy(array).to(device) for array in arrays))


@lru_cache(maxsize=1)
def build(case: AlignmentCase, seed: int) -> Problem:
    """Draw the sequences of a case, which depend on the seed."""
    rng = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    queries = _random(rng, case)
    targets = _changed(rng, queries, case.scheme) if case.similar else _random(rng, case)
    some = rng.choice(case.n_pairs, min(case.n_pairs, SOME), replace=False)
    return Problem(case, queries, targets, some)


def _random(rng: np.random.Generator, case: AlignmentCase) -> Sequences:
    """Draw independent sequences."""
    lengths = rng.integers(case.shortest, case.longest, case.count, endpoint=True)
    n_letters = len(case.scheme.letters)
    return Sequences(rng.integers(0, n_letters, lengths.sum(), dtype=np.uint8), lengths)


def _changed(rng: np.random.Generator, given: Sequences, scheme: Scheme) -> Sequences:
    """Copy sequences with random substitutions, deletions and insertions."""
    n_letters, n = len(scheme.letters), len(given.codes)
    kind = rng.choice(4, n, p=[KEPT, REPLACED, DELETED, INSERTED])
    copies = np.array([1, 1, 0, 2])[kind]
    codes, ends = np.repeat(given.codes, copies), copies.cumsum()
    replaced, inserted = ends[kind == 1] - 1, ends[kind == 3] - 1
    other = rng.integers(1, n_letters, len(replaced), dtype=np.uint8)
    codes[replaced] = (codes[replaced] + other) % n_letters
    codes[inserted] = rng.integers(0, n_letters, len(inserted), dtype=np.uint8)
    return Sequences(codes, np.add.reduceat(copies, given.start))
