"""Small files in the user's cache folder: results that another process can compute again.

The cache never raises. A file that is missing, damaged or foreign counts as absent, and a folder
that cannot be written stays unchanged. The package diskcache does neither: it returns damaged
values as if they were sound, and raises if its database is damaged.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import platformdirs

from mlff_triton._common.files import replace_file
from mlff_triton.errors import OutputError

FOLDER = "MLFF_TRITON_CACHE"  # environment variable
LARGEST = 256 << 20  # bytes of all files of one kind; the oldest are removed beyond it


def folder() -> Path:
    """Return ``$MLFF_TRITON_CACHE``, or the package's folder in the user's cache.

    Raises
    ------
    OutputError
        If the user has no home folder.
    """
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    try:
        return platformdirs.user_cache_path("mlff_triton", appauthor=False).expanduser()
    except RuntimeError as error:
        message = f"there is no home folder for the cache: set {FOLDER} to a folder"
        raise OutputError(message) from error


def read(kind: str, key: str, root: Path | None = None) -> bytes | None:
    """Return what `write` stored under a key, or None.

    Parameters
    ----------
    kind : str
        Subfolder.
    key : str
        Name of the file.
    root : Path, optional
        A folder other than `folder`.
    """
    try:
        stored = _path(kind, key, root).read_bytes()
    except (OSError, OutputError):
        return None
    content = stored[hashlib.sha256().digest_size :]
    return content if stored == _signed(key, content) else None


def write(kind: str, key: str, content: bytes, root: Path | None = None) -> None:
    """Store bytes under a key, all at once, and remove the oldest files if there are too many.

    Parameters
    ----------
    kind, key : str
        As for `read`.
    content : bytes
        At most `LARGEST` bytes; more are not stored.
    root : Path, optional
        As for `read`.
    """
    if len(content) > LARGEST:
        return
    with suppress(OSError, OutputError):
        path = _path(kind, key, root)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _signed(key, content))
        _remove_oldest(path.parent)


def _path(kind: str, key: str, root: Path | None) -> Path:
    return (root or folder()) / kind / key


def _signed(key: str, content: bytes) -> bytes:
    """Put the hash of key and content before the content."""
    return hashlib.sha256(key.encode() + content).digest() + content


def _remove_oldest(kept: Path) -> None:
    """Remove files until the others have `LARGEST` bytes at most."""
    files = [(path.stat(), path) for path in kept.iterdir()]
    total = 0
    for status, path in sorted(files, key=lambda file: -file[0].st_mtime_ns):
        total += status.st_size
        if total > LARGEST:
            path.unlink(missing_ok=True)
