"""Kernels that are compiled, and reading their machine code."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import mlff_triton
from mlff_triton.testing.launches import _largest, early_access

WAIT = "griddepcontrol.wait;"
CHOICES = {"shared_memory", "has_tensor_memory", "architecture", "packs"}
"""Functions that compilation for another GPU replaces in their modules."""


def test_launchers_choose_as_on_the_target() -> None:
    """A function that is imported by its name is not replaced: it would describe this machine."""
    imported = [
        (path.name, name.name)
        for path in Path(mlff_triton.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.name in CHOICES
    ]
    assert not imported


@pytest.mark.parametrize(
    "access",
    [
        "ld.global.b32 r1, [rd1];",
        "@p1 st.global.v4.b32 [rd1], r1;",
        "cp.async.ca.shared.global [r1], [rd1];",
    ],
)
def test_accesses_before_the_wait_are_found(access: str) -> None:
    found = early_access(f"{access}\n{WAIT}\n")
    assert found is not None
    assert access.split()[-1] in found
    assert early_access(f"{WAIT}\n{access}\n") is None


def test_kernels_that_do_not_wait_may_do_anything() -> None:
    assert early_access("ld.global.b32 r1, [rd1];") is None


def test_constants_in_global_memory_are_no_accesses() -> None:
    assert early_access(f".global .align 1 .b8 name[2] = {{95, 95}};\n{WAIT}") is None


def test_the_largest_of_each_type_and_word_is_compiled() -> None:
    def source(kernel: str, pointer: str, **constants: object) -> SimpleNamespace:
        return SimpleNamespace(
            fn=kernel, signature={"x": pointer, "n": "i32", "B": "constexpr"}, constants=constants
        )

    small, large = source("f", "*fp32", B=16, K=64), source("f", "*fp32", B=128, K=32, n=1)
    others = [
        source("g", "*i64", B=16),
        source("f", "*fp64", B=16),
        source("f", ("*i32", "*fp16"), B=16),
        source("f", "tensordesc<bf16[1, 64]>", B=16),
        source("f", "*fp32", B=16, PRECISION="tf32x3"),
        source("f", "*fp32", B=16, PRECISION="ieee"),
    ]
    chosen = list(_largest([small, *others, large]))
    assert len(chosen) == len(others) + 1
    assert all(source in chosen for source in (*others, large))


def test_other_options_are_not_compiled_in_all_combinations() -> None:
    pairs = [(t, masked) for t in ("*fp16", "*fp32") for masked in (True, False, None)]
    sources = [
        SimpleNamespace(fn="f", signature={"x": t}, constants={"MASKED": m, "B": 16 * k})
        for k, (t, m) in enumerate(pairs, 1)
    ]
    assert {id(source) for source in _largest(sources)} == {id(sources[k]) for k in (2, 5)}
    assert list(_largest(sources[:1])) == sources[:1]
