"""The command ``train``: one line per mistake, progress, models for other commands."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from mlff_triton import save_model
from mlff_triton._common import progress
from mlff_triton.training.batches import GraphData
from mlff_triton.training.evaluation import evaluate
from mlff_triton.training.labels import Labels
from mlff_triton.training.sources import read_frames, with_dipoles_about_origin
from mlff_triton.training.trainer import Trainer
from tests.support.charged import charged_model
from tests.support.disks import largest_file
from tests.support.labeled import labeled

SMALL = ("--channels", 8, "--layers", 1, "--rbf", 6, "--cutoff", 4, "--device", "cpu")
SHORT = ("--epochs", 2, "--batch", 4)


@pytest.fixture
def train(run):
    ase.io.write("data.xyz", labeled(16), format="extxyz")

    def command(*arguments, sizes=SMALL):
        return run("train", "data.xyz", *sizes, *SHORT, *arguments)

    return command


def test_the_model_serves_other_commands(train, run):
    code, out, err = train("--test", 0.2)
    assert (code, err) == (0, "")
    assert "structures: 10 to train on, 2 to validate with, 4 to test with" in out
    assert "energy MAE, meV/atom" in out
    assert "stress" not in out
    model = "train/model.safetensors"
    ase.io.write("cluster.xyz", labeled(1))
    assert run("energy", "cluster.xyz", "--model", model, "--device", "cpu")[0] == 0
    assert run("md", "cluster.xyz", "--model", model, "--device", "cpu", "--steps", 2)[0] == 0
    assert "2 to validate with" in run("info", model)[1]


@pytest.mark.filterwarnings("ignore::mlff_triton.UnknownChemistryWarning")  # it knows five atoms
def test_models_with_charges_serve_other_commands(run):
    images = labeled(16)
    for k, atoms in enumerate(images):
        charges = np.where(atoms.numbers == 47, 0.2, -0.2)
        charges += (k % 2 - charges.sum()) / len(atoms)
        results = dict(atoms.calc.results) | {"charges": charges}
        results["dipole"] = charges @ atoms.positions
        atoms.calc = SinglePointCalculator(atoms, **results)
        atoms.info["charge"] = k % 2
    ase.io.write("charged.xyz", images, format="extxyz")
    more = ("--charges", "--test", 0.2, "--dipole-weight", 0.5)
    code, out, err = run("train", "charged.xyz", *SMALL, *SHORT, *more)
    assert (code, err) == (0, "")
    assert "of 16 structures, 16 have partial charges and 16 have a dipole" in out
    assert "charge MAE" in out
    model = "train/model.safetensors"
    ase.io.write("cluster.xyz", labeled(1))
    given = ("cluster.xyz", "--model", model, "--device", "cpu")
    assert run("energy", *given)[0] == 0
    assert run("md", *given, "--steps", 2)[0] == 0
    assert run("relax", *given, "--steps", 2)[0] in (0, 1)
    assert "TensorNet2" in run("info", model)[1]
    tuning = ("--from", model, "--out", "tuned", "--device", "cpu", "--charge-weight", 2)
    assert run("train", "charged.xyz", *tuning, *SHORT)[0] == 0
    assert "charge MAE, e" in Path("tuned/report.md").read_text()


def test_fine_tuning_with_replay(train):
    train()
    more = ("--from", "train/model.safetensors", "--replay", "data.xyz", "--replay-weight", 0.3)
    code, out, err = train(*more, "--out", "tuned", sizes=("--device", "cpu"))
    assert (code, err) == (0, "")
    assert "16 to replay" in out
    assert "replay" in Path("tuned/report.md").read_text()


def test_the_same_command_continues_after_ctrl_c(train, monkeypatch):
    run_steps = Trainer.run

    def interrupted(self, show, stop, save):
        def show_and_interrupt(trainer):
            show(trainer)
            if trainer.step == 3:
                os.kill(os.getpid(), signal.SIGINT)

        run_steps(self, show_and_interrupt, stop, save)

    train("--out", "whole")
    monkeypatch.setattr(Trainer, "run", interrupted)
    code, _, err = train()
    assert code == 130
    assert err.startswith("mlff-triton: stopped at step 3 of 6, about ")
    assert err.endswith(" left: the same command continues\n")
    monkeypatch.setattr(Trainer, "run", run_steps)
    code, out, _ = train()
    assert code == 0
    assert "continues after step 3 of 6" in out
    for name in ("log.csv", "report.md"):
        assert Path("whole", name).read_bytes() == Path("train", name).read_bytes()


def test_a_limit_of_time_stops_like_ctrl_c(train):
    train("--out", "whole")
    code, _, err = train("--minutes", 1e-9)
    assert code == 130
    assert err.startswith("mlff-triton: stopped at step 0 of 6, speed unknown: the same command")
    code, out, _ = train("--minutes", 1000)
    assert code == 0
    assert "continues after step 0 of 6" in out
    for name in ("log.csv", "report.md"):
        assert Path("whole", name).read_bytes() == Path("train", name).read_bytes()


def test_progress_has_epochs_errors_and_the_remaining_time(train, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    _, out, _ = train()
    assert "epoch 1 of 2, " in out
    assert " meV/atom, " in out
    assert " left (" in out


def test_training_that_stops_early_says_so(train):
    _, out, _ = train("--epochs", 30, "--lr", 1e-9, "--decay", 0, "--patience", 2)
    assert "stopped after " in out
    assert "validates best" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--key", "energy"), "'energy' does not name a label: write energy=REF_energy"),
        (("--key", "forces=f"), "data.xyz, frame 0: it has no forces"),
        (("--energy-unit", "Ry"), "the energy unit 'Ry' is unknown: use one of eV, Hartree"),
        (("--split", "kfold"), "the split 'kfold' is unknown"),
        (("--valid", 1.5), "a part of 1.5 is impossible"),
        (("--valid", 0), "no structures of 16 remain to validate with"),
        (("--loss", "l1"), "the loss 'l1' is unknown: use one of huber, mae, mse"),
        (("--lr", 0), "--lr must be above 0, not 0"),
        (("--lr", -1), "--lr must be above 0, not -1"),
        (("--epochs", 0), "--epochs must be above 0, not 0"),
        (("--minutes", 0), "--minutes must be above 0, not 0"),
        (("--minutes", "nan"), "--minutes must be above 0, not nan"),
        (("--decay", 1), "--decay must be at least 0 and below 1, not 1"),
        (("--channels", 0), "hidden_channels=0 must lie in 1..2048"),
        (("--references", "keep"), "--references needs --from MODEL"),
        (("--replay", "data.xyz"), "--replay needs --from MODEL"),
        (("--from", "default"), "--channels is that of the model: leave it out with --from"),
        (("--coulomb-cutoff", 6), "--coulomb-cutoff needs --charges"),
        (("--charges", "--coulomb-cutoff", -1), "coulomb_cutoff=-1.0 must be above 0"),
        (("--dipole-unit", "D"), "the dipole unit 'D' is unknown: use one of e*A"),
        (("--key", "dipole=mu"), "--key dipole needs a model with charges: use --charges"),
        (("--charge-weight", 2), "--charge-weight needs a model with charges"),
        (("--charges", "--dipole-weight", -1), "weights of the loss must not be negative"),
        (("--valid-file", "absent.xyz"), "there is no file 'absent.xyz' of structures"),
        (("--test", 2, "--test-file", "data.xyz"), "--test has no effect with --test-file"),
        (("--out", "data.xyz"), "data.xyz is a file: choose another --out"),
    ],
)
def test_mistakes_take_one_line_and_write_nothing(train, arguments, message):
    before = set(Path().iterdir())
    code, _, err = train(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("mlff-triton: error: ")
    assert message in err
    assert {path.name for path in set(Path().iterdir()) - before} <= {"data.xyz"}


def test_elements_that_a_model_does_not_know(train):
    code, _, err = train("--from", "default", sizes=("--device", "cpu"))
    assert code == 2
    assert (
        "data.xyz, frame 0: the model does not know Cu, Ag; it knows H, B, C, N, O, F, Si, P, S, "
        in err
    )


def test_a_full_disk_is_one_line_and_loses_nothing(train):
    with largest_file(90):
        code, _, err = train()
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("mlff-triton: error: cannot write train/checkpoint: ")
    assert not list(Path("train").iterdir())
    assert train()[0] == 0


@pytest.mark.filterwarnings("ignore:the structure has .* electrons")
def test_replay_of_charged_structures_is_what_the_model_predicts(run):
    """Tables note total charges among the information, and dipoles about the center of mass."""
    pytest.importorskip("h5py")
    model = charged_model(dtype=torch.float32)
    save_model(model, "charged.safetensors")
    images = [molecule(name) for name in ("H2O", "CH3OH", "NH3") * 4]
    for k, atoms in enumerate(images):
        atoms.rattle(0.02, seed=k)
        atoms.positions += 5.0
        atoms.info["charge"] = k % 3 - 1
    ase.io.write("charged.xyz", images)
    shared = ("--model", "charged.safetensors", "--device", "cpu")
    run("predict", "charged.xyz", *shared, "--out", "labels.h5")
    run("predict", "charged.xyz", *shared, "--out", "labels.xyz")
    for name in ("labels.h5", "labels.xyz"):
        frames = with_dipoles_about_origin(read_frames([name], Labels(with_charges=True)))
        assert frames.charge.tolist() == [k % 3 - 1 for k in range(12)]
        graphs = GraphData(frames, model.cutoff)
        errors = evaluate(model, graphs, torch.arange(12))
        assert abs(errors.per_atom).max() < 1e-4
        assert abs(errors.known_dipoles).max() < 1e-4
    base = ("--from", "charged.safetensors", "--references", "keep", "--lr", 1e-12, "--epochs", 1)
    command = ("charged.traj", *base, "--device", "cpu", "--replay", "labels.h5")
    for atoms in images:
        results = {"energy": 0.0, "forces": np.zeros((len(atoms), 3))}
        atoms.calc = SinglePointCalculator(atoms, **results)
    ase.io.write("charged.traj", images)
    code, _, err = run("train", *command)
    assert (code, err) == (0, "")
    report = Path("train/report.md").read_text().splitlines()
    columns = ("energy MAE, meV/atom", "charge MAE, e", "dipole MAE, e Å")
    rows = [[cell.strip() for cell in line.split("|")] for line in report if line.startswith("| ")]
    replayed = dict(zip(rows[0], next(row for row in rows if row[1] == "replay"), strict=True))
    assert all(float(replayed[column]) < 0.1 for column in columns[:1])
    assert all(float(replayed[column]) < 1e-4 for column in columns[1:])
