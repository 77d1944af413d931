"""A tiny model, and the command line in a temporary directory."""

from __future__ import annotations

import ase.io
import pytest
from ase.build import molecule

from mlff_triton.cli import main as cli
from tests.support.checkpoints import save_tiny_model

CARD = "# Tiny\n\nA random model for tests.\n\nNot for science."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), CARD)


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
