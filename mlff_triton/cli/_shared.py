"""Options, exit codes and helpers that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # as a shell reports Ctrl-C

DeviceOption = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or cuda:1.")]
DtypeOption = Annotated[str, typer.Option(help="Floating-point type: float32 or float64.")]


def plain_console() -> Console:
    """Return a console that prints text as it is, without wrapping or markup."""
    return Console(soft_wrap=True, markup=False, highlight=False)
