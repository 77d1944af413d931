"""Commands that install extras, as messages name them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import mlff_triton
from mlff_triton._common import remedies

PACKAGE = Path(mlff_triton.__file__).parent
CALLS = re.compile(r"\binstall\(['\"]([a-z-]+)['\"]\)")


def test_a_checkout_is_named_by_its_path():
    *command, target = shlex.split(remedies.install("hub"))
    assert command == ["pip", "install", "--editable"]
    assert (Path(target.removesuffix("[hub]")) / "pyproject.toml").is_file()


def test_elsewhere_the_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(remedies, "ROOT", tmp_path)
    assert remedies.install("hub") == "pip install 'mlff-triton[hub]'"


def test_all_remedies_are_extras_that_there_are():
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    project = tomllib.loads((remedies.ROOT / "pyproject.toml").read_text())["project"]
    texts = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "remedies.py"]
    assert not any("pip install 'mlff-triton[" in text for text in texts)
    named = {extra for text in texts for extra in CALLS.findall(text)}
    assert len(named) > 5
    assert named <= project["optional-dependencies"].keys()
