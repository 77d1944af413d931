"""The wheel: it builds without a network, installs into a fresh environment and is complete."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE")
CHECK = """
import sys
from importlib import metadata, resources
import mlff_triton
files = resources.files("mlff_triton")
for name in ("py.typed", "__init__.pyi", "bio/__init__.pyi", "engine/costs.csv",
             "weights/tensornet-gfn2.safetensors", "weights/tensornet-gfn2.md",
             "weights/tensornet-wb97m.safetensors", "weights/tensornet-wb97m.md",
             "weights/tensornet2-wb97m.safetensors", "weights/tensornet2-wb97m.md",
             "structures/alanine_dipeptide_water.xyz"):
    assert files.joinpath(name).is_file(), name
assert mlff_triton.__file__.startswith(sys.prefix), mlff_triton.__file__
potentials = metadata.distribution("mlff-triton").entry_points
assert "openmmml.potentials" in {point.group for point in potentials}
assert mlff_triton.load_model("default").cutoff == 5.0
print(mlff_triton.__version__)
"""


def run(*command, cwd):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(  # noqa: S603 - the commands are below
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy without git, as from an unpacked archive."""
    pytest.importorskip("setuptools_scm", reason="needs setuptools-scm")
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "mlff_triton", folder / "mlff_triton", ignore=ignored)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-build-isolation")
    run(*pip, "--no-deps", "--wheel-dir", folder / "dist", ".", cwd=folder)
    (path,) = (folder / "dist").iterdir()
    return path


def test_wheel_installs_and_is_complete(wheel, tmp_path):
    assert wheel.name == "mlff_triton-0.1.0-py3-none-any.whl"
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index")
    run(*pip, "--no-deps", wheel, cwd=tmp_path)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # Dependencies come from the environment of the tests, behind what was installed here.
    packages.joinpath("dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    assert run(python, "-c", CHECK, cwd=tmp_path) == "0.1.0\n"
    assert run(python.with_name("mlff-triton"), "--version", cwd=tmp_path) == "0.1.0\n"


def test_wheel_holds_the_package_alone(wheel, tmp_path):
    shutil.unpack_archive(wheel, tmp_path, "zip")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"mlff_triton", "mlff_triton-0.1.0.dist-info"}
    metadata = (tmp_path / "mlff_triton-0.1.0.dist-info" / "METADATA").read_text()
    assert "License-Expression: MIT" in metadata
    assert "Project-URL: Source, https://github.com/mlff-triton/mlff-triton" in metadata


def test_versions_without_a_tag_agree():
    """The versions that are written down are the same, for a checkout that is not installed."""
    patterns = {
        "pyproject.toml": r'^fallback_version = "([\d.]+)"',
        "mlff_triton/_common/version.py": r'__version__ = "([\d.]+)"',
        "CITATION.cff": r"^version: ([\d.]+)$",
    }
    found = {
        name: re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)[1]
        for name, pattern in patterns.items()
    }
    assert set(found.values()) == {"0.1.0"}, found
