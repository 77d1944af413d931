"""A tiny model, and the command line in a temporary directory."""

from __future__ import annotations

import ase.io
import pytest
import torch
from ase.build import molecule

from mlff_triton import TensorNet, TensorNetConfig, save_model
from mlff_triton.cli import main as cli
from mlff_triton.model.config import ZBLConfig

CARD = "# Tiny\n\nA random model for tests.\n\nNot for science."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    config = TensorNetConfig(
        elements=(1, 6, 7, 8),
        hidden_channels=16,
        num_layers=1,
        num_rbf=8,
        zbl=ZBLConfig(cutoff=1.5, prefactor=14.4),
    )
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_model(TensorNet(config), path, CARD)
    return path


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command line in a folder with one structure; return exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    ase.io.write("ethanol.xyz", molecule("CH3CH2OH"), format="extxyz")

    def command(*arguments):
        with pytest.raises(SystemExit) as exit_:
            cli.main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return exit_.value.code, shown.out, shown.err

    return command
