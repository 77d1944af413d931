"""The command ``mlff-triton bench``: the benchmarks of a checkout, which wheels do not include."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import typer

import mlff_triton
from mlff_triton.errors import InputError

PACKAGE = "benchmarks"
# The benchmarks parse all arguments themselves, --help included: they run without typer too.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def bench(context: typer.Context) -> None:
    """Run the benchmarks of a checkout; see its own --help."""
    load_benchmarks(Path(mlff_triton.__file__).resolve().parents[1])
    code = importlib.import_module(f"{PACKAGE}.__main__").main(context.args)
    raise typer.Exit(code)


def load_benchmarks(checkout: Path) -> ModuleType:
    """Import the package ``benchmarks`` of a checkout, wherever ``sys.path`` points.

    Raises
    ------
    InputError
        If the folder is not a checkout.
    """
    spec = PathFinder.find_spec(PACKAGE, [str(checkout)])
    has_command = (checkout / PACKAGE / "__main__.py").is_file()
    if spec is None or spec.loader is None or not has_command:
        raise InputError(
            "bench needs a checkout of mlff_triton with its benchmarks folder: clone the "
            "repository and pip install --editable it"
        )
    loaded = sys.modules.get(PACKAGE)
    if loaded is None or loaded.__file__ != spec.origin:
        loaded = sys.modules[PACKAGE] = module_from_spec(spec)
        spec.loader.exec_module(loaded)
    return loaded
