"""Many structures at once: the same checks, neighbor lists and batches as one by one."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton._common.torch_settings import using_threads
from mlff_triton.errors import InputError
from mlff_triton.neighbors.graph import concatenate
from mlff_triton.neighbors.neighbor_list import neighbor_list
from mlff_triton.testing import random_cluster
from mlff_triton.training import neighbor_lists as lists_module
from mlff_triton.training.arrays import Table
from mlff_triton.training.batches import LISTED, GraphData
from mlff_triton.training.checks import BadFrameError, checked_frame
from mlff_triton.training.frames import Frame, Frames
from mlff_triton.training.labels import Labels
from mlff_triton.training.neighbor_lists import neighbor_lists
from mlff_triton.training.sources import read_frames
from mlff_triton.training.tables import checked_table
from tests.support.labeled import labeled

LABELS = Labels(
    energy_unit="Hartree",
    length_unit="Bohr",
    stress_unit="GPa",
    dipole_unit="Debye",
    with_charges=True,
)
NAMES = [f"frame {k}" for k in range(40)]


def frames_of(images: list[Atoms]) -> Frames:
    nothing = np.full((3, 3), np.nan)
    rows = [
        Frame(
            f"frame {k}",
            atoms.numbers,
            atoms.positions,
            atoms.cell.array,
            atoms.pbc,
            0.0,
            -1.0,
            np.full((len(atoms), 3), 0.1 * k),
            nothing,
            "",
            "",
        )
        for k, atoms in enumerate(images)
    ]
    return Frames.of(rows)


def clusters(*sizes: int) -> list[Atoms]:
    return [random_cluster(n, seed=k) for k, n in enumerate(sizes)]


def random_table(rng: np.random.Generator) -> Table:
    """Make 40 structures, some of them bad in all ways that single values can be."""
    sizes = rng.integers(1, 5, len(NAMES))
    start = np.concatenate([[0], np.cumsum(sizes)])
    closed = rng.random((len(sizes), 1)) < 0.5
    owner = np.repeat(np.arange(len(sizes)), sizes)
    charges = rng.normal(size=start[-1])
    charge = rng.integers(-1, 2, len(sizes)).astype(float)
    charges += ((charge - np.bincount(owner, charges)) / sizes)[owner]
    charges[start[3] : start[5]] = np.nan  # unknown
    arrays = {
        "charges": charges,
        "dipole": np.where(np.arange(len(sizes)) % 3, rng.normal(size=(3, len(sizes))), np.nan).T,
        "numbers": rng.choice([1, 6, 8], start[-1]).astype(rng.choice(["i1", "f4", "i8"])),
        "positions": rng.normal(size=(start[-1], 3)).astype(rng.choice(["f4", "f8"])),
        "forces": rng.normal(size=(start[-1], 3)),
        "energy": rng.normal(size=len(sizes)),
        "cell": rng.normal(size=(len(sizes), 3, 3)) * closed[:, :, None],
        "pbc": np.repeat(closed, 3, axis=1),
        "charge": charge,
        "weight": rng.random(len(sizes)) + 0.1,
        "stress": rng.normal(size=(len(sizes), *((6,) if rng.random() < 0.5 else (3, 3)))),
        "group": rng.choice(np.array(["", "a", " b\n c"], dtype=object), len(sizes)),
        "split": rng.choice(np.array(["train", "test"]), len(sizes)),
    }
    for label in rng.choice(list(arrays), 3, replace=False):
        array = arrays[label]
        if array.dtype.kind == "f":
            for row in rng.integers(0, len(array), 3):
                array[row] = rng.choice([np.nan, np.inf, -3.0, 0.5, 1e9, 0.0])
        elif array.dtype.kind == "i":
            array[rng.integers(0, len(array), 2)] = rng.choice([0, -1, 120])
    optional = ["charge", "weight", "stress", "group", "split", "charges", "dipole"]
    for label in rng.choice(optional, 2, replace=False):
        del arrays[label]
    return Table(start, arrays)


def one_by_one(table: Table) -> tuple[list[Frame], dict[int, str]]:
    found, bad = [], {}
    for k, name in enumerate(NAMES):
        try:
            found.append(checked_frame(name, table.frame(k), LABELS))
        except BadFrameError as error:  # noqa: PERF203
            bad[k] = str(error)
    return found, bad


@pytest.mark.parametrize("seed", range(60))
def test_tables_are_checked_like_single_structures(seed):
    table = random_table(np.random.default_rng(seed))
    frames, bad = checked_table(table, LABELS, NAMES)
    found, reasons = one_by_one(table)
    assert bad == reasons
    assert (frames is None) == (not found)
    expected = Frames.of(found)
    for field in fields(Frames):
        ours, theirs = getattr(frames, field.name), getattr(expected, field.name)
        assert ours.dtype == theirs.dtype
        if ours.dtype == object:
            assert list(ours) == list(theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-14)


@pytest.mark.parametrize(
    ("label", "array", "reason"),
    [
        ("energy", np.zeros((40, 2)), r"the shape of its energy is \[2\]"),
        ("numbers", np.full(40, "C"), "its numbers cannot be read as numbers"),
        ("cell", np.zeros((40, 9)), r"the shape of its cell is \[9\], expected \[3, 3\]"),
        ("weight", np.full(40, np.nan), "there is NaN or infinity in its weight"),
        ("weight", np.full(40, -2.0), "its weight is -2, and only one above 0 has a meaning"),
        ("weight", np.ones((40, 3)), r"the shape of its weight is \[3\]"),
        ("dipole", np.ones((40, 2)), r"the shape of its dipole is \[2\], expected \[3\]"),
        ("dipole", np.ones(40), r"the shape of its dipole is \[\], expected \[3\]"),
        ("dipole", np.full((40, 3), np.inf), "there is NaN or infinity in its dipole"),
        ("charges", np.ones(40), "its charges add up to 1, and its total charge is 0: correct"),
        ("charges", np.ones((40, 2)), r"the shape of its charges is \[1, 2\], expected \[1\]"),
    ],
)
def test_arrays_that_are_wrong_everywhere(label, array, reason):
    arrays = {
        "numbers": np.ones(40),
        "positions": np.zeros((40, 3)),
        "forces": np.zeros((40, 3)),
        "energy": np.zeros(40),
        "cell": np.zeros((40, 3, 3)),
        "pbc": np.zeros((40, 3), dtype=bool),
    }
    assert not checked_table(Table(np.arange(41), arrays), LABELS, NAMES)[1]
    frames, bad = checked_table(Table(np.arange(41), arrays | {label: array}), LABELS, NAMES)
    assert frames is None
    assert len(bad) == 40
    with pytest.raises(InputError, match=reason):
        raise InputError(bad[7])


@pytest.mark.parametrize("cutoff", [1.5, 4.0, math.inf])
def test_neighbor_lists_are_those_of_each_structure(cutoff, monkeypatch):
    monkeypatch.setattr(lists_module, "CHUNK", 60)
    images = clusters(5, 1, 7, 5, 130, 2, 5, 7, 1, 7)
    images[3].positions += 2e4
    images[6].positions *= 100  # no neighbors
    if math.isfinite(cutoff):
        images += labeled(3, periodic=True)
    found, edge_start = neighbor_lists(frames_of(images), cutoff)
    each = [neighbor_list(a.positions, cutoff, a.cell.array, a.pbc) for a in images]
    expected = concatenate(each)
    for name in LISTED:
        assert torch.equal(getattr(found, name).long(), getattr(expected, name)), name
    assert edge_start.diff().tolist() == [graph.n_edges for graph in each]


def test_neighbor_lists_take_one_thread(monkeypatch):
    """With as many as cores, each of many small operations waits for the slowest core."""
    seen, compared = set(), lists_module._compared

    def look(*args):
        seen.add(torch.get_num_threads())
        return compared(*args)

    monkeypatch.setattr(lists_module, "_compared", look)
    with using_threads(2):
        neighbor_lists(frames_of(clusters(5, 7)), 4.0)
        assert (seen, torch.get_num_threads()) == ({1}, 2)


def test_elements_of_all_structures_are_looked_up_once(monkeypatch):
    """Not once per formula, of which large data have thousands."""
    looks = []
    elements = Frames.elements.fget

    def counted(frames):
        looks.append(len(frames))
        return elements(frames)

    monkeypatch.setattr(Frames, "elements", property(counted))
    frames, bad = checked_table(random_table(np.random.default_rng(0)), LABELS, NAMES)
    assert len(set(frames.group)) > 3
    assert bad
    assert len(looks) <= 2


def test_atoms_that_coincide_are_named():
    images = clusters(4, 4, 4)
    images[1].positions[3] = images[1].positions[0]
    with pytest.raises(InputError, match=r"frame 1: atoms 0 and 3 are 0\.0e"):
        neighbor_lists(frames_of(images), 4.0)


def test_parts_are_batches_below_a_size():
    data = GraphData(frames_of(clusters(5, 1, 7, 30, 2, 5, 7, 1, 7)), 4.0)
    chosen = torch.tensor([8, 3, 0, 1, 2, 7])
    for most in (1, 20, 100, 10**6):
        parts = list(data.parts(chosen, most))
        assert torch.equal(torch.cat(parts), chosen)
        sizes = [len(data.batch(part)["senders"]) for part in parts]
        assert all(size <= most or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    assert len(parts) == 1


@pytest.mark.gpu
def test_batches_made_on_a_gpu_are_those_of_a_cpu():
    frames = frames_of(clusters(5, 1, 7, 30, 2, 5, 7, 1, 7))
    chosen = torch.tensor([8, 3, 0])
    made = [GraphData(frames, 4.0, torch.device(kind)) for kind in ("cpu", "cuda")]
    expected, found = (data.batch(chosen, made[0].size(3)) for data in made)
    for name, tensor in expected.items():
        assert found[name].is_cuda
        assert torch.equal(found[name].cpu(), tensor)


def test_weights_are_read_from_files(tmp_path):
    images = labeled(4)
    for k, atoms in enumerate(images):
        atoms.info["weight"] = 0.5 + k
    ase.io.write(tmp_path / "data.xyz", images)
    assert read_frames([tmp_path / "data.xyz"], Labels()).weight.tolist() == [0.5, 1.5, 2.5, 3.5]
    arrays = {
        "n_atoms": [len(atoms) for atoms in images],
        "numbers": np.concatenate([atoms.numbers for atoms in images]),
        "positions": np.concatenate([atoms.positions for atoms in images]),
        "forces": np.concatenate([atoms.get_forces() for atoms in images]),
        "energy": [atoms.get_potential_energy() for atoms in images],
    }
    np.savez(tmp_path / "data.npz", **arrays, weight=[1, 2, 3, 4])
    assert read_frames([tmp_path / "data.npz"], Labels()).weight.tolist() == [1, 2, 3, 4]
    np.savez(tmp_path / "data.npz", **arrays, weight=[1, 0, 3, 4])
    with pytest.raises(InputError, match="frame 1: its weight is 0, and only one above 0"):
        read_frames([tmp_path / "data.npz"], Labels())


def test_selected_atoms_are_those_of_the_structures():
    frames = frames_of(clusters(3, 1, 4))
    assert frames.atoms_of(np.array([2, 0])).tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert len(frames.atoms_of(np.arange(0))) == 0
    weighted = replace(frames, weight=np.array([1.0, 2.0, 3.0]))
    assert weighted.select(np.array([2, 0])).weight.tolist() == [3, 1]
    assert weighted.fingerprint != frames.fingerprint
