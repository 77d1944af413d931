"""The package as a whole: the time, names and requirements of its import."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import mlff_triton


def run_fresh(code: str, **environment: str) -> str:
    """Run code in a new interpreter with warnings as errors, and return its output."""
    done = subprocess.run(  # noqa: S603 - the code is below
        [sys.executable, "-W", "error::DeprecationWarning:mlff_triton", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_quick_and_loads_no_framework():
    code = """
import sys, time
start = time.perf_counter()
import mlff_triton
print(time.perf_counter() - start)
print(*sorted({"torch", "triton", "ase", "openmm", "numpy", "vesin"} & sys.modules.keys()))
"""
    seconds, loaded = run_fresh(code).split("\n")[:2]
    assert loaded == ""
    assert float(seconds) < 1.0


@pytest.mark.parametrize(("backend", "loaded"), [("exact", set()), ("auto", {"numba"})])
def test_the_first_calculator_loads_no_more_than_it_needs(backend, loaded):
    """Modules that take a tenth of a second or more, and that few users need."""
    code = f"""
import sys
from mlff_triton import Engine, TensorNetCalculator, load_model
TensorNetCalculator(device="cpu", backend="{backend}")
heavy = {{"ase.constraints", "ase.spacegroup", "matplotlib", "numba", "openmm", "pandas"}}
heavy |= {{"torch._dynamo", "transformers", "triton"}}
print(*sorted(heavy & sys.modules.keys()))
"""
    assert set(run_fresh(code).split()) <= loaded


def test_every_public_name_resolves():
    for name in mlff_triton.__all__:
        assert getattr(mlff_triton, name) is not None
    assert sorted(set(mlff_triton.__all__)) == sorted(mlff_triton.__all__)
    assert set(mlff_triton.__all__) <= set(dir(mlff_triton))


def test_public_names_resolve_to_what_they_say():
    for name in set(mlff_triton.__all__) - {"__version__"}:
        thing = getattr(mlff_triton, name)
        assert thing.__name__ == name
        assert thing.__module__.startswith("mlff_triton.")
        assert thing.__doc__


def test_the_index_of_operators_is_true():
    pytest.importorskip("triton")
    folder = Path(mlff_triton.__file__).parent / "kernels"
    text = (folder / "README.md").read_text()
    rows = re.findall(r"^\| (`.+`) \| `([\w.]+)` \|", text, re.MULTILINE)
    tables = re.findall(r"^\| operator \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    assert len(rows) == sum(table.count("\n") - 2 for table in tables) > 40
    for names, stem in rows:
        module = importlib.import_module(f"mlff_triton.kernels.{stem}")
        for name in re.findall(r"`(\w+)`", names):
            assert getattr(module, name).__module__ == module.__name__


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="attribute TensorNte"):
        _ = mlff_triton.TensorNte
    with pytest.raises(ImportError):
        exec("from mlff_triton import TensorNte")  # noqa: S102 - as a reader would


def test_star_import_gives_the_public_names():
    namespace: dict[str, object] = {}
    exec("from mlff_triton import *", namespace)  # noqa: S102 - as a reader would
    assert namespace.keys() - {"__builtins__"} == set(mlff_triton.__all__)


def test_version_is_that_of_the_distribution():
    try:
        installed = metadata.version("mlff-triton")
    except metadata.PackageNotFoundError:
        pytest.skip("the package is not installed")
    assert mlff_triton.__version__ == installed


def test_works_without_triton_openmm_and_gpu():
    code = """
import sys
for name in ("triton", "openmm", "openmmtorch"):
    sys.modules[name] = None  # importing it raises ImportError
import torch
import mlff_triton
assert not torch.cuda.is_available()
for name in mlff_triton.__all__:
    getattr(mlff_triton, name)
config = mlff_triton.TensorNetConfig((1, 8), hidden_channels=8, num_rbf=4)
model = mlff_triton.TensorNet(config)
positions = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.96], [0.0, 0.93, -0.24]]
graph = mlff_triton.neighbor_list(positions, model.cutoff)
numbers = torch.tensor([8, 1, 1])
prediction = mlff_triton.predict(model, numbers, torch.tensor(positions), graph)
print(bool(torch.isfinite(prediction.energy).all()), tuple(prediction.forces.shape))
"""
    assert run_fresh(code, CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="") == "True (3, 3)\n"
