"""Exit codes of the command line, and its one line to stderr."""

from __future__ import annotations

import sys

from mlff_triton._common.text import one_line

EXIT_INCOMPLETE = 1
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # as a shell reports Ctrl-C


def complain(text: str) -> None:
    """Print one line to stderr; it may quote what a user gave."""
    sys.stderr.write(f"mlff-triton: {one_line(text)}\n")
