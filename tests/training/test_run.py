"""Training from files to files: errors fall, the model is the one reported, resumption is exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch

from mlff_triton import Engine, load_model
from mlff_triton.checkpoints import model_card
from mlff_triton.errors import CheckpointError, InputError, OutputError
from mlff_triton.model.tensornet import UNCERTAINTY
from mlff_triton.training import trainer as trainer_module
from mlff_triton.training.evaluation import mae
from mlff_triton.training.labels import Labels
from mlff_triton.training.outputs import OUTPUTS, Outputs
from mlff_triton.training.run import Base, train_files
from mlff_triton.training.settings import Architecture, Data, Settings
from mlff_triton.units import HARTREE
from tests.support.disks import largest_file
from tests.support.labeled import labeled

SMALL = Architecture(channels=8, layers=1, rbf=6, cutoff=4.0)
DATA = Data(("data.xyz",), valid=4, test=4)
SHORT = Settings(epochs=3, batch=4)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ase.io.write("data.xyz", labeled(24), format="extxyz")
    ase.io.write("cells.xyz", labeled(12, periodic=True), format="extxyz")


def train(out="out", data=DATA, begin=SMALL, settings=SHORT, **options):
    return train_files(data, Path(out), begin, settings, device="cpu", **options)


def contents(out, names=("log.csv", "report.md")):
    return [Path(out, name).read_bytes() for name in names]


def weights(out):
    return load_model(Path(out, "model.safetensors")).state_dict()


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_errors_fall_and_are_those_of_the_saved_model():
    images = {"many.xyz": labeled(24), "cells.xyz": labeled(24, periodic=True)}
    for name, structures in images.items():
        ase.io.write(name, structures, format="extxyz")
    data = replace(DATA, files=tuple(images))
    begin = replace(SMALL, channels=16)
    result = train(data=data, begin=begin, settings=Settings(epochs=30, batch=4, lr=1e-2))
    first, best = result.trainer.log[0], result.trainer.best_row
    assert best.valid_force_meV_per_A < first.valid_force_meV_per_A / 2
    assert best.valid_loss < first.valid_loss / 3

    test = result.errors["test"]
    named = {f"{name}, frame {k}": a for name, some in images.items() for k, a in enumerate(some)}
    chosen = [named[name] for name in test.frames.name]
    engine = Engine(load_model("out/model.safetensors"), device="cpu")
    energies, forces = [], []
    for atoms in chosen:
        found = engine.compute(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
        energies.append(float(found.energy[0]) - atoms.get_potential_energy())
        forces.append(found.forces.cpu().numpy() - atoms.get_forces())
    assert np.allclose(energies, test.energy, atol=2e-4)
    assert np.allclose(np.concatenate(forces), test.forces, atol=2e-4)
    assert f"| test | 4 | {1000 * mae(test.per_atom):.4g} |" in Path("out/report.md").read_text()
    assert set(OUTPUTS) == {path.name for path in Path("out").iterdir()}
    assert f"epoch {best.epoch}" in model_card(Path("out/model.safetensors"))


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_an_interrupted_training_goes_on_to_the_bit(steps):
    train("whole")
    calls = []

    def stop():
        calls.append(1)
        return len(calls) > steps

    stopped = train(stop=stop)
    assert (stopped.trainer.step, stopped.errors) == (steps, {})
    said = []
    result = train(say=said.append)
    assert f"continues after step {steps} of 12" in said
    assert result.errors
    assert contents("whole") == contents("out")
    assert same(weights("whole"), weights("out"))
    states = [torch.load(Path(out, "checkpoint"), weights_only=True) for out in ("whole", "out")]
    assert same(*(state["state"]["model"] for state in states))


def test_states_within_an_epoch_are_saved(monkeypatch):
    monkeypatch.setattr(trainer_module, "SECONDS_BETWEEN_SAVES", 0.0)

    def fail(trainer):
        if trainer.step == 6:
            raise KeyboardInterrupt

    train("whole")
    with pytest.raises(KeyboardInterrupt):
        train(show=fail)
    assert not Path("out/.lock").exists()
    said = []
    train(say=said.append)
    assert "continues after step 6 of 12" in said
    assert same(weights("whole"), weights("out"))


def test_a_complete_training_is_only_reported():
    train()
    before = contents("out")
    assert train().trainer.step == 12
    assert contents("out") == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"settings": replace(SHORT, lr=1.0)}, "as --lr shows"),
        ({"settings": replace(SHORT, seed=1)}, "as --seed shows"),
        ({"begin": replace(SMALL, channels=16)}, "as --channels shows"),
        ({"data": replace(DATA, files=("cells.xyz",))}, "as the content of its files shows"),
    ],
)
def test_other_options_do_not_continue(change, reason):
    train(stop=lambda: True)
    before = contents("out", ("checkpoint", "log.csv"))
    with pytest.raises(InputError, match=reason):
        train(**change)
    assert contents("out", ("checkpoint", "log.csv")) == before
    assert train(**change, overwrite=True, stop=lambda: True).trainer.step == 0


def test_damaged_checkpoints_and_other_files_are_refused():
    train(stop=lambda: True)
    Path("out/checkpoint").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="restore it, or begin anew with --overwrite"):
        train()
    Path("out/checkpoint").unlink()
    with pytest.raises(OutputError, match=r"out/model\.safetensors exists: choose another --out"):
        train()
    with pytest.raises(OutputError, match=r"data\.xyz is a file"):
        train("data.xyz")


def test_a_full_disk_loses_nothing():
    train("whole")
    train(stop=lambda: True)
    before = contents("out", ("checkpoint", "log.csv", "model.safetensors"))
    with largest_file(100), pytest.raises(OutputError, match="cannot write out/checkpoint"):
        train()
    assert contents("out", ("checkpoint", "log.csv", "model.safetensors")) == before
    train()
    assert same(weights("whole"), weights("out"))


@pytest.mark.gpu
def test_a_gpu_trains_alike_and_continues():
    """One graph serves all batches, which are padded; a GPU sums in another order."""
    expected = train("cpu").trainer.log
    calls = []

    def stop():
        calls.append(1)
        return len(calls) > 4

    train_files(DATA, Path("out"), SMALL, SHORT, device="cuda", stop=stop)
    result = train_files(DATA, Path("out"), SMALL, SHORT, device="cuda")
    assert result.trainer.step == 12
    for found, row in zip(result.trainer.log, expected, strict=True):
        assert found.valid_loss == pytest.approx(row.valid_loss, rel=1e-2)


def test_only_one_training_per_directory():
    train(stop=lambda: True)
    before = contents("out", ("checkpoint", "log.csv"))
    with Outputs(Path("out"), {}, "").lock():
        for overwrite in (False, True):
            with pytest.raises(OutputError, match=r"is training in out: wait for its end, stop it"):
                train(overwrite=overwrite)
    assert contents("out", ("checkpoint", "log.csv")) == before


def test_training_stops_early():
    result = train(settings=Settings(epochs=50, batch=4, lr=1e-9, patience=2, decay=0.0))
    assert result.trainer.is_stopped_early
    assert len(result.trainer.log) < 50
    assert result.trainer.log[-1].epoch == result.trainer.best_row.epoch + 2


def test_a_training_that_diverges_is_one_line():
    with pytest.raises(
        InputError, match=r"has diverged in epoch [12]: begin anew with a lower --lr"
    ):
        train(settings=Settings(epochs=2, batch=4, lr=1e30, warm_up=0, max_gradient=1e30))


def test_a_repulsion_is_part_of_the_model():
    train(begin=replace(SMALL, zbl=2.0))
    (zbl,) = load_model("out/model.safetensors").config.repulsions
    assert (zbl.cutoff, zbl.is_smooth) == (2.0, True)


def test_files_to_validate_and_test_with():
    ase.io.write("valid.xyz", labeled(3, seed=1), format="extxyz")
    ase.io.write("test.xyz", labeled(5, seed=2), format="extxyz")
    result = train(data=Data(("data.xyz",), valid_file="valid.xyz", test_file="test.xyz"))
    sizes = {name: len(errors.frames) for name, errors in result.errors.items()}
    assert sizes == {"train": 24, "valid": 3, "test": 5}


def test_structures_in_two_parts_are_reported():
    ase.io.write("test.traj", [*labeled(2), *labeled(3, seed=2)])  # with more digits
    said, data = [], Data(("data.xyz",), valid_file="data.xyz", test_file="test.traj")
    train(data=data, say=said.append)
    report = Path("out/report.md").read_text()
    for text in ("24 structures to validate with, 24", "5 structures to test with, 2"):
        line = f"Of {text} are also among those to train on, so that their errors are too small."
        assert line in said
        assert f"- {line}" in report
    said.clear()
    train("other", say=said.append)
    assert not any("also among" in line for line in said)


def test_parts_without_structures_or_samples_are_refused():
    with pytest.raises(InputError, match="no structures of 24 remain to validate with"):
        train(data=replace(DATA, valid=0))
    gold = labeled(3)
    for atoms in gold:
        atoms.numbers[0] = 79
    ase.io.write("gold.xyz", gold, format="extxyz")
    with pytest.raises(InputError, match="Au occurs in the valid set and has no sample"):
        train(data=replace(DATA, valid_file="gold.xyz"))
    assert not Path("out").exists()


def test_charged_structures_make_a_model_that_knows_charges():
    images = labeled(12)
    for k, atoms in enumerate(images):
        atoms.info["charge"] = k % 2
    ase.io.write("charged.xyz", images, format="extxyz")
    charged = Data(("charged.xyz",))
    train(data=charged)
    assert load_model("out/model.safetensors").config.uses_charge
    train("neutral")
    with pytest.raises(InputError, match=r"charged\.xyz, frame 1 is charged, and the model"):
        train("other", data=charged, begin=Base("neutral/model.safetensors"))


class TestFineTuning:
    @pytest.fixture(autouse=True)
    def base(self):
        train("base", settings=Settings(epochs=10, batch=4, lr=5e-3))
        return Base("base/model.safetensors")

    def test_the_model_is_where_it_begins(self, base):
        result = train(begin=replace(base, references="keep"), stop=lambda: True)
        assert same(weights("out"), weights("base"))
        assert weights("base").keys() - weights("out").keys() == set(UNCERTAINTY)
        assert not result.errors

    def test_references_follow_another_method(self, base):
        images = labeled(24)
        for atoms in images:
            atoms.calc.results["energy"] += 7.0 * len(atoms)
        ase.io.write("moved.xyz", images, format="extxyz")
        before = train(data=replace(DATA, files=("data.xyz",)), begin=base, stop=lambda: True)
        moved = replace(DATA, files=("moved.xyz",))
        result = train("moved", data=moved, begin=base, stop=lambda: True)
        change = weights("moved")["references"] - weights("out")["references"]
        assert torch.allclose(change, torch.full_like(change, 7.0), atol=1e-3)
        assert np.isclose(
            result.trainer.log[0].valid_loss, before.trainer.log[0].valid_loss, rtol=1e-3
        )

        for atoms in images:
            atoms.calc.results["energy"] /= HARTREE
            atoms.calc.results["forces"] /= HARTREE
        ase.io.write("moved.xyz", images, format="extxyz")
        labels = Labels(energy_unit="Hartree")  # of the data, and not of what is replayed
        with_replay = replace(moved, labels=labels, replay="data.xyz", replay_weight=0.5)
        result = train("replayed", data=with_replay, begin=base)
        assert len(result.errors["replay"].frames) == 24
        assert mae(result.errors["replay"].per_atom) < 0.5  # moved with the references
        assert result.trainer.steps == 3 * ((16 + 24) // 4)

    def test_unknown_elements_are_refused(self, base):
        images = labeled(12)
        images[1].numbers[0] = 79
        ase.io.write("gold.xyz", images, format="extxyz")
        gold = replace(DATA, files=("gold.xyz",), valid=1, test=0)
        for seed in range(5):  # until gold is in the training set
            settings = replace(SHORT, seed=seed)
            with pytest.raises(InputError, match=r"does not know Au|Au occurs in the valid set"):
                train(data=gold, begin=base, settings=settings)
        assert not Path("out").exists()


def test_options_out_of_range_are_refused():
    with pytest.raises(InputError, match="--references 'guess' is unknown: use fit or keep"):
        Base("default", "guess")
    for option in ("epochs", "batch", "lr", "max_gradient"):
        with pytest.raises(InputError, match=f"--{option.replace('_', '-')} must be above 0"):
            Settings(**{option: 0})


@pytest.mark.parametrize("option", ["epochs", "batch", "patience", "warm_up", "seed"])
def test_whole_numbers_that_pytorch_cannot_hold_are_refused(option):
    with pytest.raises(InputError, match=f"--{option.replace('_', '-')} must be at most"):
        Settings(**{option: 10**30})
