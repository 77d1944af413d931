"""Rules of the code: import-linter finds faults planted in every layer, and functions are short."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")

ROOT = Path(__file__).parents[1]
LINT = Path(sys.executable).with_name("lint-imports")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]

OTHERS = {
    "references and types need PyTorch alone": [
        ("mlff_triton.kernels.dynamics.reference", "triton"),
        ("mlff_triton.kernels.numerics.split", "triton"),
        ("mlff_triton.kernels.genomics.types", "triton"),
        ("mlff_triton.kernels.types", "triton"),
    ],
    "the package does without its benchmarks": [("mlff_triton.training", "benchmarks")],
    "structures of ASE are for front ends": [("mlff_triton.jobs", "ase")],
    "the terminal is for commands, progress bars and two tables": [
        ("mlff_triton.jobs", "rich"),
        ("mlff_triton.engine", "typer"),
    ],
    "Numba compiles loops for CPUs, and nothing else": [
        ("mlff_triton.engine", "numba"),
        ("mlff_triton.kernels.tensornet.cpu", "numba"),
    ],
    "OpenMM has one front end": [
        ("mlff_triton.calculators.lammps", "openmm"),
        ("mlff_triton.dynamics", "openmmml"),
    ],
    "libraries of dispersion have one user": [
        ("mlff_triton.calculators", "dftd3"),
        ("mlff_triton.calculators", "nvalchemiops"),
        ("mlff_triton.engine", "tad_dftd3"),
        ("mlff_triton.engine", "tad_mctc"),
    ],
    "figures are drawn in two places": [("mlff_triton.dynamics", "matplotlib")],
}
"""Imports that contracts without layers forbid."""


def modules(layer: str) -> list[str]:
    """Return the modules of a layer."""
    return re.split(r"\s*[|:]\s*", layer)


def layered() -> Iterator[tuple[str, str]]:
    """Yield an import by each layer of the layer above it, and of its neighbors."""
    for contract in CONTRACTS:
        for container in contract.get("containers", []):
            layers = contract["layers"]
            for above, layer in pairwise(layers):
                yield f"{container}.{modules(layer)[-1]}", f"{container}.{modules(above)[0]}"
            for layer in layers:
                if "|" in layer:
                    first, second, *_ = modules(layer)
                    yield f"{container}.{first}", f"{container}.{second}"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what import-linter says of a copy of the code with all faults."""
    copy = tmp_path_factory.mktemp("planted")
    for name in ("mlff_triton", "benchmarks"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for importer, imported in [*layered(), *(pair for pairs in OTHERS.values() for pair in pairs)]:
        path = copy.joinpath(*importer.split("."))
        module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        with module.open("a") as file:
            file.write(f"import {imported}\n")
    done = subprocess.run(  # noqa: S603
        [LINT, "--no-cache"], cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("pair", list(layered()), ids=" imports ".join)
def test_layers_are_imported_from_above(pair, report):
    importer, imported = map(re.escape, pair)
    assert re.search(rf"- {importer} -> {imported} \(", report)


@pytest.mark.parametrize("name", OTHERS)
def test_other_imports_are_forbidden(name, report):
    assert f"{name} BROKEN" in report
    for importer, imported in OTHERS[name]:
        assert re.search(rf"- {re.escape(importer)} -> {imported} \(", report)


def test_circles_are_found(report):
    name = next(each["name"] for each in CONTRACTS if each["type"] == "acyclic_siblings")
    assert f"{name} BROKEN" in report
    assert "No cycles are allowed in mlff_triton.engine." in report


def test_each_contract_is_tested():
    unnamed = [
        each["name"]
        for each in CONTRACTS
        if not ("containers" in each or each["type"] == "acyclic_siblings")
    ]
    assert sorted(unnamed) == sorted(OTHERS)


def test_the_map_of_the_code_is_complete():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("## Where things are")[2].partition("Every family")[0]
    names = re.findall(r"`([\w.]+)`", " ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    package = ROOT / "mlff_triton"
    found = {path.parent.name for path in package.glob("*/__init__.py")} - {"kernels"}
    found |= {f"kernels.{path.parent.name}" for path in package.glob("kernels/*/__init__.py")}
    found |= {path.stem for path in package.glob("[!_]*.py")}
    assert sorted(names) == sorted(found)


LONGEST, N_LONGER = 100, 3


def long_functions(source: str) -> list[str]:
    """Return functions of more than `LONGEST` lines, from the first decorator to the last line."""
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [
        each.name
        for each in functions
        if (each.end_lineno or 0) - min(part.lineno for part in (each, *each.decorator_list))
        >= LONGEST
    ]


@pytest.mark.parametrize("begin", ["def f():\n", "@once\ndef f():\n", "async def f(\n    x,\n):\n"])
def test_long_functions_are_found(begin):
    others = LONGEST - begin.count("\n")
    assert long_functions(begin + others * "    x = 1\n") == []
    assert long_functions(begin + (others + 1) * "    x = 1\n") == ["f"]


def test_few_functions_are_long():
    paths = [
        path
        for name in ("mlff_triton", "benchmarks", "tools")
        for path in (ROOT / name).rglob("*.py")
    ]
    found = [
        (path.name, name) for path in paths for name in long_functions(path.read_text("utf-8"))
    ]
    assert len(found) <= N_LONGER, found
