"""Version of the package, which setuptools-scm derives from the git tag when it is built."""

from __future__ import annotations

from importlib import metadata

try:
    __version__ = metadata.version("mlff-triton")
except metadata.PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0.1.0"
