"""Reading of the zips of pickled tensors that `torch.save` writes."""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import torch

from mlff_triton.checkpoints._reading import SUPPORTED
from mlff_triton.errors import CheckpointError

MAX_PICKLE_BYTES = 2 << 20  # tensors are separate members; their names need 150 bytes each
# Names that a pickle may refer to. PyTorch permits more, with which 20 bytes allocate 20 GB.
PLAIN = re.compile(
    r"collections (OrderedDict|Counter)|(__builtin__|builtins) set"
    r"|torch\._utils _rebuild_(tensor_v2|parameter)"
    r"|torch (\w+Storage|Size|device|b?float\d+|u?int\d+|bool)"
)


def unpickle(members: Mapping[str, bytes], name: str) -> Any:
    """Unpickle tensors and plain containers, and refuse anything that would run code.

    Parameters
    ----------
    members : mapping of str to bytes
        Members of the zip. Their checksums, which PyTorch ignores, must have been verified.
    name : str
        Name of the file in error messages.

    Returns
    -------
    object
        Tensors, numbers and strings in dicts and lists.

    Raises
    ------
    CheckpointError
        If the file is incomplete, or contains anything but tensors and plain data.
    """
    for member, content in members.items():
        if member.endswith("data.pkl"):
            _check_plain(content, name)
    verified = io.BytesIO()
    with zipfile.ZipFile(verified, "w") as archive:
        for member, content in members.items():
            archive.writestr(zipfile.ZipInfo(member), content)
    verified.seek(0)
    try:
        return torch.load(verified, map_location="cpu", weights_only=True)
    except Exception as error:  # of any type; PyTorch's messages advise to run the code in the file
        raise CheckpointError(
            f"{name} is damaged, or does not contain just tensors and plain data; {SUPPORTED}"
        ) from error


def _check_plain(pickled: bytes, name: str) -> None:
    if len(pickled) > MAX_PICKLE_BYTES:
        raise CheckpointError(
            f"{name} has {len(pickled) / 1e6:.1f} MB besides its tensors: a model has at most "
            f"{MAX_PICKLE_BYTES / 1e6:.1f} MB"
        )
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and not PLAIN.fullmatch(str(argument)):
            raise CheckpointError(
                f"{name} would run {str(argument)[:80]!r}, so it was not loaded: save just its "
                "tensors and plain data"
            )
