"""Finished models that do not explain their own labels are doubted, and honest ones are not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest

from mlff_triton.training.evaluation import Errors
from mlff_triton.training.explained import LONG, doubts
from mlff_triton.training.labels import Labels
from mlff_triton.training.run import train_files
from mlff_triton.training.settings import Architecture, Data, Settings
from mlff_triton.training.sources import read_frames
from mlff_triton.units import EV_TO_KCAL_PER_MOL
from tests.support.labeled import labeled
from tests.support.trajectories import labeled_copy, scaled

SMALL = Architecture(channels=8, layers=1, rbf=6, cutoff=4.0)
WRONG = {"gradients": (1, -1), "energies": (EV_TO_KCAL_PER_MOL, 1), "forces": (1, 23.0)}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(images, epochs):
    ase.io.write("data.xyz", images, format="extxyz")
    settings = Settings(epochs=epochs, batch=4, lr=1e-2)
    return train_files(Data(("data.xyz",), valid=4), Path("out"), SMALL, settings, device="cpu")


@pytest.mark.parametrize("wrong", WRONG)
def test_contradictions_without_close_structures_are_found_at_the_end(wrong):
    """The cells of all structures differ, so that nothing can be compared before."""
    result = train(scaled(labeled(24, periodic=True), *WRONG[wrong]), 40)
    assert "explains the forces of its own training and validation set, but not" in result.doubts
    first = Path("out/report.md").read_text().splitlines()[0]
    assert first == f"**Warning: {result.doubts}.**"


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("epochs", [1, 2, 5, 40])
def test_honest_trainings_are_not_doubted(periodic, epochs):
    assert train(labeled(24, periodic=periodic), epochs).doubts is None
    assert Path("out/report.md").read_text().startswith("# Report of the training\n")


def errors_of(energy: float, forces: float, *, spread: float = 0.2, offset: float = 0.0):
    """Return errors that leave some parts of energies and forces unexplained, by their norms."""
    rng = np.random.default_rng(0)
    images = labeled(60)
    images = [labeled_copy(a, -9.0 * len(a) + len(a) * spread * rng.normal()) for a in images]
    ase.io.write("data.traj", images)
    frames = read_frames(["data.traj"], Labels())
    exact = frames.energy + 9.0 * frames.n_atoms
    nothing = np.full(3, np.nan)
    whole = Errors(
        frames,
        energy * exact + offset * frames.n_atoms,
        forces * frames.forces,
        np.broadcast_to(nothing, (60, 3, 3)),
        frames.charges,
        frames.dipole,
        0.0,
    )
    part = {}
    for name, chosen in (("train", np.arange(50)), ("valid", np.arange(50, 60))):
        some, atoms = frames.select(chosen), frames.atoms_of(chosen)
        rows = {"energy": chosen, "stress": chosen, "dipole": chosen}
        rows |= {"forces": atoms, "charges": atoms}
        part[name] = replace(
            whole, frames=some, **{k: getattr(whole, k)[r] for k, r in rows.items()}
        )
    return part


@pytest.mark.parametrize(
    ("energy", "forces", "steps", "found"),
    [
        (0.1, 0.1, 10, None),
        (0.1, 0.1, 10 * LONG, None),
        (2.0, 0.1, 10, "explains the forces .* but not the energies"),
        (1.0, 0.1, 10, "explains the forces .* but not the energies"),
        (0.1, 1.0, 10, "explains the energies .* but not the forces"),
        (0.1, 30.0, 10, "explains the energies .* but not the forces"),
        (0.6, 0.2, 10, None),  # R² of 0.64 and 0.96, as early in a training
        (1.0, 0.5, 10, None),  # the forces are not explained well either
        (1.0, 1.0, LONG - 1, None),
        (1.0, 1.0, LONG, "explains nothing of its own .* after 2000 steps"),
        (3.0, 1.0, LONG, "explains nothing of its own .* after 2000 steps"),
        (0.9, 1.0, LONG, None),
    ],
)
def test_shares_decide(energy, forces, steps, found):
    said = doubts(errors_of(energy, forces), steps)
    if found is None:
        assert said is None
    else:
        assert re.search(found, said)
        assert "\n" not in said


def test_energies_that_hardly_differ_or_forces_of_zero_are_not_judged():
    assert doubts(errors_of(3.0, 0.1, spread=1e-4), LONG) is None
    assert doubts(errors_of(3.0, 0.1, spread=1e-2), LONG) is not None
    still = {
        name: replace(found, frames=replace(found.frames, forces=0 * found.frames.forces))
        for name, found in errors_of(0.1, 0.1).items()
    }
    assert doubts(still, LONG) is None


def test_shifted_energies_are_not_explained():
    """As with --references keep and labels of another method."""
    assert "but not the energies" in doubts(errors_of(0.1, 0.1, offset=5.0), 10)
