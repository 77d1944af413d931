"""Kernels and their references take the same arguments, which Protocols of operators declare."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import mlff_triton.kernels

KERNELS = Path(mlff_triton.kernels.__file__).parent

OWN_LAYOUT = "the kernel takes weights and rows in a layout of its own"
DIFFERENT = {
    "alignment.alignment": "sizes of batches and tables are chosen differently",
    "neighbors.build_rows": "the kernel has a number of atoms per program, the reference an order",
    "transformer.token_linear": OWN_LAYOUT,
    "transformer.token_moments": OWN_LAYOUT,
    "transformer.token_norm": OWN_LAYOUT,
    "transformer.top_logit": OWN_LAYOUT,
}
"""Operators whose reference takes other arguments, and why."""

PROTOCOLS = {
    "binding": "BindingOperators",
    "convolution": "ConvolutionOperators",
    "electrostatics": "FieldOperators",
    "genomics": "GenomicOperators",
    "pairs": "PairOperators",
    "residues": "ResidueOperators",
    "tensornet": "StepOperators",
    "tensornet2": "ChargedOperators",
    "transformer": "TransformerOperators",
}


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Return the public functions of a module, without those that run inside kernels."""
    return {
        node.name: node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if not any("triton.jit" in ast.unparse(each) for each in node.decorator_list)
    }


def signature(function: ast.FunctionDef) -> tuple[Any, ...]:
    """Return the arguments of a function, keyword-only ones in any order, and its result."""
    found = function.args
    defaults = [default and ast.unparse(default) for default in found.kw_defaults]
    named = sorted(zip(map(ast.unparse, found.kwonlyargs), defaults, strict=True))
    others = ast.arguments(
        posonlyargs=found.posonlyargs,
        args=found.args,
        vararg=found.vararg,
        kwonlyargs=[],
        kw_defaults=[],
        kwarg=found.kwarg,
        defaults=found.defaults,
    )
    return ast.unparse(others), named, function.returns and ast.unparse(function.returns)


def pairs() -> Iterator[tuple[str, ast.FunctionDef, ast.FunctionDef]]:
    """Yield the functions that a family and its references both have."""
    for folder in sorted(KERNELS.glob("*/reference")):
        family = folder.parent
        own = {
            name: f for path in sorted(family.glob("*.py")) for name, f in functions(path).items()
        }
        for path in sorted(folder.glob("*.py")):
            for name, reference in functions(path).items():
                if name in own:
                    yield f"{family.name}.{name}", own[name], reference


PAIRS = {name: (kernel, reference) for name, kernel, reference in pairs()}


def test_exceptions_are_needed():
    different = {name for name, pair in PAIRS.items() if signature(pair[0]) != signature(pair[1])}
    assert different == DIFFERENT.keys()


@pytest.mark.parametrize("name", sorted(PAIRS.keys() - DIFFERENT.keys()))
def test_kernels_and_references_take_the_same(name):
    kernel, reference = PAIRS[name]
    assert signature(kernel) == signature(reference)


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        *product(PROTOCOLS, ["", ".reference"]),
        *((path.parents[1].name, ".cpu") for path in KERNELS.glob("*/cpu/operators.py")),
    ],
)
def test_protocols_are_satisfied(family, backend):
    """Mypy also compares types; this test does not depend on it."""
    protocol = getattr(import_module(f"mlff_triton.kernels.{family}.protocol"), PROTOCOLS[family])
    operators = import_module(f"mlff_triton.kernels.{family}{backend}.operators")
    declared = {name: f for name, f in vars(protocol).items() if inspect.isfunction(f)}
    declared = {name: f for name, f in declared.items() if not name.startswith("_")}
    assert {name for name, f in vars(operators).items() if inspect.isfunction(f)} == set(declared)
    for name, method in declared.items():
        _, *expected = inspect.signature(method).parameters.values()
        found = list(inspect.signature(getattr(operators, name)).parameters.values())
        assert [p.default for p in found] == [p.default for p in expected], name
        if all(p.kind is not p.POSITIONAL_ONLY for p in expected):
            assert [(p.name, p.kind) for p in found] == [(p.name, p.kind) for p in expected], name


def test_every_family_of_operators_has_a_protocol():
    found = {path.parent.name for path in KERNELS.glob("*/protocol.py")}
    assert sorted(found) == sorted(PROTOCOLS)
