"""A disk that is full, without one."""

from __future__ import annotations

import resource
from contextlib import contextmanager


@contextmanager
def largest_file(size):
    """Have the system refuse to write any file beyond a size in bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
