"""Trained models know the chemistry of their data, and that of the model before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from mlff_triton import load_model
from mlff_triton.checkpoints import model_card
from mlff_triton.model.known_domain import TENSORNET_WB97M, KnownDomain
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.training.domain import learned_domain
from mlff_triton.training.labels import Labels
from mlff_triton.training.run import Base, train_files
from mlff_triton.training.settings import Architecture, Data, Settings
from mlff_triton.training.sources import read_frames
from tests.support.tensornets import model_of

WATER = KnownDomain(charges=(0,), closed_shells=True, bonds=None)
IN_VACUUM = "All are molecules and clusters in vacuum"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def known(base: TensorNet | None, *structures: Atoms) -> KnownDomain | None:
    """Return what a model knows after training on structures."""
    ase.io.write("domain.xyz", [labeled(atoms) for atoms in structures], format="extxyz")
    return learned_domain(read_frames(["domain.xyz"], Labels()), base)


def labeled(atoms: Atoms) -> Atoms:
    atoms.calc = SinglePointCalculator(atoms, energy=0.0, forces=np.zeros((len(atoms), 3)))
    return atoms


def of(name: str, *, periodic: bool = False, charge: int = 0) -> Atoms:
    atoms = molecule(name, cell=[9] * 3, pbc=periodic)
    if charge:
        atoms.info["charge"] = charge
    return atoms


def test_a_new_model_knows_its_data():
    water = of("H2O")
    assert known(None, water) == WATER
    assert known(None, water, of("OH")) == replace(WATER, closed_shells=False)
    assert known(None, water, of("OH", charge=-1)) == replace(WATER, charges=(-1, 0))
    box = known(None, water, of("H2O", periodic=True))
    assert box is not None
    assert (box.is_in_vacuum, box.closed_shells) == (False, False)


def test_a_fine_tuned_model_knows_what_it_knew_before():
    default, water = load_model("default"), of("H2O")
    assert known(default, water) == TENSORNET_WB97M
    assert known(default, of("OH")) == replace(TENSORNET_WB97M, closed_shells=False)
    learned = known(default, water, of("O2"))
    assert learned is not None
    assert learned.wrong == ()
    periodic = known(default, of("H2O", periodic=True))
    assert periodic is not None
    assert not periodic.is_in_vacuum
    assert periodic.wrong == TENSORNET_WB97M.wrong
    assert known(model_of(elements=(1, 8)), water) is None  # its training set may be of anything


def test_a_model_keeps_what_its_training_knew():
    rng, images = np.random.default_rng(0), []
    for _ in range(16):
        atoms = of("H2O")
        atoms.positions += rng.normal(scale=0.05, size=(3, 3))
        images.append(atoms)
    for name, is_periodic in (("molecules", False), ("boxes", True)):
        for atoms in images:
            atoms.pbc = is_periodic
        ase.io.write(f"{name}.xyz", [labeled(atoms) for atoms in images], format="extxyz")

    def train(out: str, file: str, begin: Architecture | Base) -> KnownDomain | None:
        train_files(Data((file,)), Path(out), begin, Settings(epochs=1), device="cpu")
        path = Path(out, "model.safetensors")
        domain = load_model(path).known_domain
        told = [
            IN_VACUUM in text for text in (model_card(path), Path(out, "report.md").read_text())
        ]
        assert domain is not None
        assert told == [domain.is_in_vacuum] * 2
        return domain

    small = Architecture(channels=8, layers=1, rbf=6, cutoff=4.0)
    assert train("new", "molecules.xyz", small) == WATER
    assert train("again", "molecules.xyz", Base("new/model.safetensors")) == WATER
    boxes = train("boxes", "boxes.xyz", Base("again/model.safetensors"))
    assert boxes == replace(WATER, closed_shells=False, is_in_vacuum=False)
