"""Batches of all shapes take the same kernels: Triton does not specialize on their sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlff_triton.kernels.transformer as package

SIZES = {"n_rows", "n_tokens", "length", "capacity", "tokens"}  # that differ from batch to batch


def kernels() -> Iterator[tuple[str, set[str], ast.expr]]:
    """Yield the name of each kernel, its arguments that are sizes of a batch, and its decorator."""
    for path in sorted(Path(package.__file__).parent.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
                sizes = SIZES & {argument.arg for argument in node.args.args}
                yield node.name, sizes, node.decorator_list[-1]


@pytest.mark.parametrize(("name", "sizes", "decorator"), list(kernels()))
def test_sizes_of_batches_are_not_specialized_on(name, sizes, decorator):
    del name
    assert sizes
    assert isinstance(decorator, ast.Call)
    (option,) = decorator.keywords
    assert option.arg == "do_not_specialize"
    assert set(ast.literal_eval(option.value)) == sizes
