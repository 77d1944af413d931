"""Structures whose energies are compared with each other: read, drawn and judged together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ase.io
import h5py
import numpy as np
import pytest
import torch
from ase import Atoms

from mlff_triton import TensorNet, TensorNetConfig
from mlff_triton.testing import assert_within
from mlff_triton.training.batches import GraphData, shuffled, units_of
from mlff_triton.training.evaluation import evaluate, mae
from mlff_triton.training.frames import Frames
from mlff_triton.training.labels import Labels
from mlff_triton.training.loss import PENALTIES, Loss, errors_of
from mlff_triton.training.ranks import Ranks
from mlff_triton.training.run import train_files
from mlff_triton.training.settings import Architecture, Data, Settings
from mlff_triton.training.sources import read_frames
from mlff_triton.training.splits import split_frames
from tests.support.labeled import labeled

SMALL = Architecture(channels=8, layers=1, rbf=6, cutoff=4.0)
DATA = Data(("data.xyz",), valid=6, test=6)
NAMES = ["a", "", "b", "a", "", "b", "b", ""]


def named(structures: list[Atoms], names: list[str | int]) -> list[Atoms]:
    """Give structures the names of series; those without one get none."""
    for atoms, name in zip(structures, names, strict=True):
        if name != "":
            atoms.info["series"] = name
    return structures


def frames_of(path: Path, names: list[str]) -> Frames:
    ase.io.write(path, named(labeled(len(names)), names), format="extxyz")
    return read_frames([path], Labels())


@pytest.fixture
def frames(tmp_path):
    return frames_of(tmp_path / "data.xyz", NAMES)


@pytest.fixture
def data(frames):
    return GraphData(frames, 4.0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = TensorNetConfig((29, 47), hidden_channels=8, num_layers=1, num_rbf=6, cutoff_upper=4.0)
    return TensorNet(config).double()


def by_hand(energy: np.ndarray, names: list[str], penalty: str) -> tuple[np.ndarray, float]:
    """Return deviations of all that are in series, and their mean penalty."""
    found = []
    for name in dict.fromkeys(filter(None, names)):
        own = energy[[other == name for other in names]]
        found += (own - own.mean()).tolist() if len(own) > 1 else []
    sizes = np.abs(found)
    smooth = np.where(sizes < 0.01, sizes**2 / 0.02, sizes - 0.005)
    values = {"huber": smooth, "mae": sizes, "mse": sizes**2}
    return np.array(found), float(values[penalty].mean())


def test_names_are_read_from_all_kinds_of_files(tmp_path, frames):
    assert frames.series.tolist() == NAMES
    assert frames.unit.tolist() == [0, 1, 2, 0, 3, 2, 2, 4]
    numbers = [1, 1, 2, 2]
    ase.io.write(tmp_path / "numbers.xyz", named(labeled(4), numbers), format="extxyz")
    assert read_frames([tmp_path / "numbers.xyz"], Labels()).unit.tolist() == [0, 0, 1, 1]
    rows = frames.select(np.arange(4))
    for series in (rows.series.astype("S"), np.array([7, 3, 3, 7])):
        with h5py.File(tmp_path / "data.h5", "w") as file:
            for name in ("numbers", "positions", "forces", "energy", "n_atoms"):
                file[name] = getattr(rows, name)
            file["series"] = series
        found = read_frames([tmp_path / "data.h5"], Labels())
        assert found.unit.tolist() == ([0, 1, 1, 0] if series.dtype == int else [0, 1, 2, 0])


@pytest.mark.usefixtures("frames")
def test_files_share_series(tmp_path):
    ase.io.write(tmp_path / "more.xyz", named(labeled(2, seed=1), ["b", "c"]), format="extxyz")
    both = read_frames([tmp_path / "data.xyz", tmp_path / "more.xyz"], Labels())
    assert both.unit.tolist() == [0, 1, 2, 0, 3, 2, 2, 4, 2, 5]
    assert both.select(np.array([8, 2, 0])).unit.tolist() == [0, 0, 1]


def test_names_count_as_content_only_where_there_are_any(tmp_path, frames):
    plain = frames_of(tmp_path / "plain.xyz", [""] * len(NAMES))
    assert plain.fingerprint != frames.fingerprint
    assert plain.fingerprint == replace(frames, series=plain.series).fingerprint


@pytest.mark.parametrize("seed", range(8))
def test_random_splits_divide_no_series(tmp_path, seed):
    names = [f"{k // 3}" if k < 24 else "" for k in range(40)]
    frames = frames_of(tmp_path / "data.xyz", names)
    for part in split_frames(frames, "random", 0.2, 5, seed):
        own = frames.series[part]
        assert all((own == name).sum() in (0, 3) for name in set(names) - {""})


@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_loss_by_hand(model, data, penalty):
    order = torch.tensor([2, 5, 6, 1, 0, 3, 7])
    names = [NAMES[k] for k in order]
    units = torch.from_numpy(data.frames.unit)[order]
    weights = {"energy": 0.0, "forces": 1e-9, "stress": 0.0}
    for size in (None, data.size(len(order))):
        batch = data.batch(order, size, units)
        errors = errors_of(model, batch, create_graph=False)
        found = Loss(penalty, **weights, relative=3.0).of(errors, batch)
        rest = Loss(penalty, **weights, relative=0.0).of(errors, batch)
        energy = errors.energy[: len(order)].detach().numpy()
        assert_within(found - rest, 3 * by_hand(energy, names, penalty)[1], 1e-9)


def test_weights_of_structures_count(model, frames):
    weight = np.ones(len(frames))
    weight[2] = 3.0
    data, order = GraphData(replace(frames, weight=weight), 4.0), torch.tensor([2, 5, 6, 0, 3])
    batch = data.batch(order, None, torch.from_numpy(frames.unit)[order])
    errors = errors_of(model, batch, create_graph=False)
    (energy,) = (errors.energy.numpy(),)
    deviations = np.abs(by_hand(energy, [NAMES[k] for k in order], "mae")[0])
    found = Loss("mae", 0.0, 1e-9, 0.0, relative=1.0).of(errors, batch)
    rest = Loss("mae", 0.0, 1e-9, 0.0, relative=0.0).of(errors, batch)
    assert_within(found - rest, np.average(deviations, weights=[3, 1, 1, 1, 1]), 1e-9)


def test_without_series_nothing_changes(model, data):
    alone = torch.tensor([1, 4, 7])
    losses = [
        Loss()(model, data.batch(alone, None, units)).detach()
        for units in (None, torch.from_numpy(data.frames.unit)[alone])
    ]
    assert torch.equal(*losses)


@pytest.mark.parametrize("most", [1, 10**9])
def test_validation_compares_whole_series_whatever_the_batches(model, data, most):
    chosen = torch.tensor([0, 2, 3, 5, 7])
    errors = evaluate(model, data, chosen, Loss("mae", 1.0, 0.0, 0.0, relative=2.0), most)
    names = [NAMES[k] for k in chosen]
    deviations, mean = by_hand(errors.energy, names, "mae")
    assert_within(np.sort(errors.relative), np.sort(deviations), 1e-9)
    assert errors.in_series.tolist() == [True, True, True, True, False]
    per_atom = np.abs(errors.per_atom).mean()
    assert_within(errors.loss, per_atom + 2 * mean, 1e-9)


def test_series_are_drawn_in_one_piece(frames):
    many = Frames.join([replace(frames, series=frames.series + suffix) for suffix in "xyz"])
    many = replace(
        many, series=np.where(np.char.str_len(many.series.astype(str)) > 1, many.series, "")
    )
    chosen = torch.arange(len(many))
    units = units_of(many, chosen, 6)
    stream, seen = shuffled(chosen, 6, 0, 0, units), []
    for _ in range(len(many) // 6):
        batch = next(stream)
        assert 6 - 2 <= len(batch) <= 6
        own = units[batch]
        pieces = 1 + int((own[1:] != own[:-1]).sum())
        assert pieces == len(own.unique())
        seen += batch.tolist()
    assert len(set(seen)) == len(seen) >= len(many) - 3 * 4
    later = shuffled(chosen, 6, 0, 2, units)
    again = shuffled(chosen, 6, 0, 0, units)
    for _ in range(2):
        next(again)
    for _ in range(9):
        assert torch.equal(next(later), next(again))


def test_structures_alone_are_drawn_as_before():
    chosen = torch.arange(10, 27)
    generator = torch.Generator().manual_seed(5)
    order = chosen[torch.randperm(17, generator=generator)]
    stream = shuffled(chosen, 5, 5, 0)
    for k in range(3):
        assert torch.equal(next(stream), order[5 * k : 5 * k + 5])


def test_long_series_are_cut(tmp_path):
    frames = frames_of(tmp_path / "data.xyz", ["long"] * 7 + [""])
    units = units_of(frames, torch.arange(8), 3)
    assert torch.bincount(units).tolist() == [3, 3, 1, 1]
    assert units_of(frames, torch.tensor([0, 6, 7]), 3).tolist() == [0, 0, 1]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(25))
def test_every_process_has_whole_series(seed, count):
    """For batches as short as they become, and series as long as `Trainer` lets them be."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(count, 20))
    most = max(1, (size + 1) // (count + 1))
    lengths: list[int] = []
    while sum(lengths) + most <= size:
        lengths.append(int(rng.integers(1, most + 1)))
    units = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    chosen = torch.arange(len(units)) + 100
    shares = [Ranks(rank, count).share(chosen, units) for rank in range(count)]
    assert torch.equal(torch.cat(shares), chosen)
    for share in shares:
        own = units[share - 100]
        assert 0 < len(share) <= -(-size // count) + most - 1
        assert all(int((own == u).sum()) == lengths[u] for u in own.unique())


def train(out, device="cpu", relative=5.0, **options):
    loss = Loss(energy=0.0, forces=0.1, relative=relative)
    settings = Settings(epochs=3, batch=6, loss=loss)
    return train_files(DATA, Path(out), SMALL, settings, device=device, **options)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"{k // 2}" for k in range(30)]
    ase.io.write("data.xyz", named(labeled(30), names), format="extxyz")


@pytest.mark.usefixtures("folder")
def test_relative_energies_are_learned_and_reported():
    data = replace(DATA, valid_file="data.xyz", test=0.0)  # so that the last epoch is the best
    errors = {}
    for relative in (0.0, 5.0):
        loss = Loss(energy=0.0, forces=0.1, relative=relative)
        settings = Settings(epochs=40, batch=6, lr=5e-3, loss=loss)
        found = train_files(data, Path(f"{relative:g}"), SMALL, settings, device="cpu")
        errors[relative] = mae(found.errors["valid"].relative)
    assert errors[5.0] < errors[0.0] / 2
    header, *_, last = Path("5/log.csv").read_text().splitlines()
    assert header.endswith(",valid_relative_meV")
    assert float(last.split(",")[-1]) == pytest.approx(1000 * errors[5.0], rel=1e-3)
    assert f"| {1000 * errors[5.0]:.4g} |" in Path("5/report.md").read_text()
    assert "meV in series" in found.trainer.best_row.text()


@pytest.mark.usefixtures("folder")
def test_an_interrupted_training_continues_to_the_bit():
    whole = train("whole")
    steps: list[object] = []
    train("parts", show=steps.append, stop=lambda: len(steps) == 4)
    parts = train("parts")
    for row, other in zip(whole.trainer.log, parts.trainer.log, strict=True):
        assert np.array_equal(list(vars(row).values()), list(vars(other).values()), equal_nan=True)


@pytest.mark.usefixtures("folder")
def test_processes_take_the_steps_of_one():
    one, two = train("one"), train("two", "cpu,cpu")
    for row, other in zip(one.trainer.log, two.trainer.log, strict=True):
        for name in ("train_loss", "valid_loss", "valid_relative_meV"):
            expected = pytest.approx(getattr(row, name), rel=1e-3, nan_ok=True)
            assert getattr(other, name) == expected, name


@pytest.mark.gpu
@pytest.mark.usefixtures("folder")
def test_gpus_take_the_steps_of_a_cpu():
    cpu, gpu = train("cpu"), train("gpu", "cuda")
    for row, other in zip(cpu.trainer.log, gpu.trainer.log, strict=True):
        expected = pytest.approx(row.valid_relative_meV, rel=1e-2)
        assert other.valid_relative_meV == expected
