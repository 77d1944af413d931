"""Exit codes of the command line, and its one line to stderr."""

from __future__ import annotations

import sys

EXIT_INCOMPLETE = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # as a shell reports Ctrl-C


def complain(text: str) -> None:
    """Print one line to stderr."""
    sys.stderr.write(f"mlff-triton: {text}\n")
