"""The application: its commands, and errors as one line with exit code 2.

Commands import what they need when they run, so that ``--help`` does not wait for PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer
from rich.console import Console

from mlff_triton import __version__
from mlff_triton.cli._shared import EXIT_ERROR, EXIT_INTERRUPTED
from mlff_triton.cli.align import align
from mlff_triton.cli.bench import PASS_ON, bench
from mlff_triton.cli.calibrate import calibrate
from mlff_triton.cli.convert import convert
from mlff_triton.cli.explain import explain
from mlff_triton.cli.info import info
from mlff_triton.cli.md import md
from mlff_triton.errors import MlffTritonError

# The base class of typer's argument errors, whose module depends on the version of typer.
UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="mlff-triton",
    help="TensorNet machine-learning force fields and sequence alignment.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (md, info, explain, convert, align, calibrate):
    app.command()(command)
app.command(context_settings=PASS_ON)(bench)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command-line arguments; those of the process by default.

    Raises
    ------
    SystemExit
        Always: with code 0 after success, 2 after an error, 130 after Ctrl-C or SIGTERM.
    """
    given = None if arguments is None else list(arguments)
    try:
        sys.exit(app(args=given, standalone_mode=False) or 0)
    except (MlffTritonError, UsageError) as error:
        message = getattr(error, "format_message", error.__str__)()
        _complain("error: " + " ".join(message.split()))
        sys.exit(EXIT_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        sys.exit(EXIT_INTERRUPTED)


def _complain(text: str) -> None:
    """Print one unwrapped, undecorated line to stderr."""
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False, emoji=False)
    console.print(f"mlff-triton: {text}")


def _show_version(wanted: bool) -> None:
    if wanted:
        Console().print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """TensorNet machine-learning force fields and sequence alignment."""
