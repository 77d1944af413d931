"""Assignments to attributes of imported modules and classes, which the whole process would see."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

EXCEPTIONS = {
    "_common/figures.py": "chooses Matplotlib's way to draw before it is imported",
    "_common/spawned.py": "sets threads in a process of its own, which computes for another",
    "cli/_streams.py": "gives a command streams that can write any text, and puts them back",
    "cli/bench.py": "imports the benchmarks of a checkout under their name",
    "cli/main.py": "shows warnings in one line while a command runs",
    "kernels/common/cpu/child.py": "makes empty modules in a process of its own, which compiles",
    "testing/launches.py": "records launches in tests, and puts everything back",
    "testing/tf32.py": "switches TF32 in tests, and puts it back",
}
"""Files that change something of the whole process, with the reason."""


def imported_names(tree: ast.AST) -> set[str]:
    """Return the names that imports bind anywhere in a module."""
    aliases = [
        alias
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}


def root(node: ast.AST) -> str | None:
    """Return the name at the beginning of an expression such as ``name.x[0].y``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def changed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions to whose attributes or items a module assigns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript):
            if not isinstance(node.ctx, ast.Load):
                yield node
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            if function in {"setattr", "delattr"} or function.endswith("patch.object"):
                yield node.args[0]
            elif function.endswith("mock.patch"):
                yield node.func


def patches(source: str) -> list[str]:
    """Return the expressions by which a module changes something that it has imported."""
    tree = ast.parse(source)
    names = imported_names(tree)
    return [ast.unparse(each) for each in changed(tree) if root(each) in names]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.backends.cudnn.benchmark = True",
        "def f():\n    from triton.runtime.jit import JITFunction\n    JITFunction.run = None",
        "import triton.runtime.cache as c\nc.triton_key, x = None, 1",
        "from triton import knobs\nsetattr(knobs, 'compilation', 1)",
        "import os\nos.environ['A'] = 'b'",
        "import os\ndel os.environ['A']",
        "from torch import nn\nnn.Linear.forward += 1",
        "from unittest import mock\nimport torch\nmock.patch.object(torch, 'compile')",
    ],
)
def test_planted_patches_are_found(source):
    assert patches(source)


def test_what_a_module_owns_is_no_patch():
    assert not patches("import torch\nx = torch.ones(1)\nx.y = 1\nx.z[0] = torch.ones(1)")


def test_patches_of_the_whole_process_have_a_reason():
    package = ROOT / "mlff_triton"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if patches(path.read_text(encoding="utf-8"))
    }
    assert sorted(found) == sorted(EXCEPTIONS)
