"""The entry point: run the application, and report errors in one line with exit code 2.

Importing this module takes a millisecond. Everything else is imported where Ctrl-C is caught.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from types import FrameType

from mlff_triton._common.text import one_line
from mlff_triton.cli._exits import EXIT_ERROR, EXIT_INTERRUPTED, complain
from mlff_triton.cli._streams import Streams
from mlff_triton.errors import MlffTritonError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. Without arguments, print the help.

    Parameters
    ----------
    arguments : sequence of str, optional
        Command-line arguments; those of the process by default.

    Raises
    ------
    SystemExit
        Always: with code 0 after success, 1 if a result is incomplete, 2 after an error, 130 after
        Ctrl-C or SIGTERM.
    """
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    format_before = warnings.formatwarning
    try:
        warnings.formatwarning = _format_warning
        if is_default:
            signal.signal(signal.SIGINT, _interrupt)
        with Streams() as streams:
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
            streams.check()
            if streams.failure:
                complain(f"error: cannot write the standard output: {streams.failure}")
                code = code or EXIT_ERROR
        sys.exit(code)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    finally:
        warnings.formatwarning = format_before
        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`, or exit at once during an import.

    Imports of NumPy and PyTorch catch exceptions and continue with modules that are incomplete.
    """
    del number
    os.write(2, b"mlff-triton: interrupted\n")
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            os._exit(EXIT_INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    import typer

    from mlff_triton.cli.app import UsageError, app

    try:
        return app(args=arguments or ["--help"], standalone_mode=False) or 0
    except typer.Abort:
        raise KeyboardInterrupt from None
    except (MlffTritonError, UsageError) as error:
        message = getattr(error, "format_message", error.__str__)()
    except OSError as error:  # of files that no command expects, such as a path that is too long
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    complain(f"error: {message}")
    return EXIT_ERROR


def _format_warning(message: Warning | str, *_: object, **_more: object) -> str:
    """Return a warning as one line, without the line of code that it comes from."""
    return f"mlff-triton: warning: {one_line(message)}\n"
