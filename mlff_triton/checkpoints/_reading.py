"""Reading of files that may be damaged, hostile, or not checkpoints at all."""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlff_triton._common.text import first_line
from mlff_triton.errors import CheckpointError, InputError, UnsupportedModelError

SUPPORTED = (
    "supported are mlff_triton .safetensors, TorchMD-NET .ckpt (or a .zip of them), and MatGL "
    "folders with model.json and state.pt"
)
MAX_FILE_BYTES = 1 << 30
MAX_INFLATION = 10  # weights hardly shrink when they are compressed
SPARE_BYTES = 1 << 20  # what a tiny file may inflate to


@contextmanager
def interpreting(name: str) -> Iterator[None]:
    """Turn any error in reading a checkpoint into a `CheckpointError` that names the file.

    Damaged and hostile files make the libraries that read them raise errors of any type.
    """
    try:
        yield
    except (CheckpointError, Warning):  # warnings that a program turns into errors
        raise
    except InputError as error:
        raise UnsupportedModelError(
            f"{name} does not describe a supported model: {error}"
        ) from error
    except KeyError as error:
        raise CheckpointError(f"{name} lacks {error}: the file may be incomplete") from error
    except MemoryError as error:
        raise CheckpointError(f"{name} needs more memory than there is") from error
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise CheckpointError(f"{name} cannot be read: {reason}") from error
    except Exception as error:
        raise CheckpointError(
            f"{name} does not have the content of such a checkpoint ({first_line(error)}): "
            "copy it again"
        ) from error


def read_file(path: Path) -> bytes:
    """Read a regular file.

    Raises
    ------
    CheckpointError
        If the file is a device or a pipe, or larger than 1 GiB.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path} is not a regular file; {SUPPORTED}")
    if status.st_size > MAX_FILE_BYTES:
        raise CheckpointError(
            f"{path} has {status.st_size / 1e9:.1f} GB: a model has at most "
            f"{MAX_FILE_BYTES / 1e9:.1f} GB"
        )
    with path.open("rb") as file:
        return file.read(status.st_size)


def read_json(content: str | bytes, name: str) -> Any:
    """Parse JSON, or raise `CheckpointError`."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is not JSON ({first_line(error)})") from error


def read_zip(content: bytes, name: str) -> dict[str, bytes]:
    """Read the members of a zip and compare their checksums.

    Raises
    ------
    CheckpointError
        If a member is damaged or encrypted, or the members are much larger than the zip.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        # A truncated zip of zips ends like a zip, and a damaged directory hides members.
        end = content[-22 - len(archive.comment) :]
        count = int.from_bytes(end[10:12], "little")
        first = min((member.header_offset for member in members), default=0)
        if first > 0 or count not in (len(members), 0xFFFF):
            raise CheckpointError(f"{name} is truncated or damaged: copy it again")
        limit = min(MAX_FILE_BYTES, MAX_INFLATION * len(content) + SPARE_BYTES)
        if sum(member.file_size for member in members) > limit:
            raise CheckpointError(
                f"{name} inflates to more than {limit / 1e6:.0f} MB, too much for a model"
            )
        if any(m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for m in members):
            raise CheckpointError(f"{name} is damaged, or neither stored nor deflated")
        return {member.filename: archive.read(member) for member in members}
