"""Division of structures: nothing is lost, nothing is in two parts, groups stay whole."""

from __future__ import annotations

import numpy as np
import pytest

from mlff_triton.errors import InputError
from mlff_triton.training.frames import Frame, Frames
from mlff_triton.training.outliers import outliers
from mlff_triton.training.splits import split_frames


def frames_of(groups, splits=None, energies=None):
    nothing = np.full((3, 3), np.nan)
    rows = []
    for k, group in enumerate(groups):
        split = "" if splits is None else splits[k]
        energy = -1.0 if energies is None else energies[k]
        box = np.zeros((3, 3)), np.zeros(3, dtype=bool)
        forces = np.zeros((1, 3))
        rows.append(
            Frame(
                f"frame {k}",
                np.array([1]),
                forces,
                *box,
                0.0,
                energy,
                forces,
                nothing,
                group,
                split,
            )
        )
    return Frames.of(rows)


@pytest.mark.parametrize(("valid", "test", "sizes"), [(0.1, 0.2, (2, 4)), (3, 0, (3, 0))])
def test_random_splits_divide_all(valid, test, sizes):
    frames = frames_of("ab" * 10)
    split = split_frames(frames, "random", valid, test, 0)
    assert sorted(np.concatenate(split)) == list(range(20))
    assert (len(split.valid), len(split.test)) == sizes
    again = split_frames(frames, "random", valid, test, 0)
    assert all((a == b).all() for a, b in zip(split, again, strict=True))
    other = split_frames(frames, "random", valid, test, 1)
    assert list(split.valid) != list(other.valid)


def test_groups_stay_whole():
    frames = frames_of("aaabbbcccddd")
    split = split_frames(frames, "group", 0.2, 0.2, 0)
    parts = [set(frames.group[part]) for part in split]
    assert [len(part) for part in split] == [6, 3, 3]
    assert not parts[0] & parts[1]
    assert not parts[1] & parts[2]
    with pytest.raises(InputError, match="needs more groups than 1"):
        split_frames(frames_of("aaa"), "group", 0.2, 0.0, 0)


def test_given_splits():
    split = split_frames(frames_of("abc", ["train", "val", "test"]), "given", 0, 0, 0)
    assert [list(part) for part in split] == [[0], [1], [2]]
    with pytest.raises(InputError, match="name it with --key split=NAME"):
        split_frames(frames_of("abc", ["train", "", "test"]), "given", 0, 0, 0)


def test_impossible_splits():
    with pytest.raises(InputError, match="the split 'kfold' is unknown: use one of random"):
        split_frames(frames_of("ab"), "kfold", 0.1, 0, 0)
    for size in (-0.1, 2):
        with pytest.raises(InputError, match="is impossible: there are 2 structures"):
            split_frames(frames_of("ab"), "random", size, 0, 0)


def test_energies_are_compared_with_most_others():
    energies = [-13.6] * 8 + [-13.6 / 27.2114, -300.0]
    found = outliers(frames_of("a" * 10, energies=energies))
    assert list(found) == [8, 9]
    assert found[8].endswith(", as if units were mixed: Hartree and eV")
    assert "units" not in found[9]
