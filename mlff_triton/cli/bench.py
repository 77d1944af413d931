"""The command ``mlff-triton bench``: the benchmark lab of a checkout, which no wheel contains."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer

import mlff_triton
from mlff_triton.errors import InputError

# All arguments, --help too, belong to the lab, which also runs where there is no typer.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def bench(context: typer.Context) -> None:
    """Measure steps, operators and calculators against their peers; --help says more."""
    checkout = Path(mlff_triton.__file__).resolve().parents[1]
    if not (checkout / "benchmarks" / "__main__.py").is_file():
        raise InputError(
            "bench needs a checkout of mlff_triton, with its folder benchmarks: clone the "
            "repository and pip install --editable it"
        )
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    code = importlib.import_module("benchmarks.__main__").main(context.args)
    raise typer.Exit(code)
