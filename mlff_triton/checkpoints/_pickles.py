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
MAX_COPIED_OBJECTS = 1_000_000
STORES = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
FETCHES = ("GET", "BINGET", "LONG_BINGET")
# Names that a pickle may refer to. PyTorch permits more, some of which let 20 bytes allocate 20 GB.
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
    if _copied_objects(pickled) > MAX_COPIED_OBJECTS:
        raise CheckpointError(
            f"{name} contains tuples within tuples that stand for more than "
            f"{MAX_COPIED_OBJECTS} objects, too many for a model"
        )


def _copied_objects(pickled: bytes) -> int:
    """Count the objects that a pickle takes from its memo, with everything they contain.

    Sixty tuples, each of which contains the one before it twice, stand for 2^60 objects. Python
    visits all of them to hash the last one, for example as a key of a dict. The count stops above
    the limit.
    """
    memo: dict[int, int] = {}
    stack: list[int | None] = []  # number of objects in each; None is a mark
    copied = 0
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name in STORES:
            memo[len(memo) if argument is None else int(str(argument))] = stack[-1] or 0
            continue
        if opcode.name in FETCHES:
            found = memo[int(str(argument))]
            stack.append(found)
            copied += found
        else:
            before, size = opcode.stack_before, 1
            if pickletools.markobject in before:
                before = before[: before.index(pickletools.markobject)]
                while (part := stack.pop()) is not None:
                    size += part
            size += sum(stack.pop() or 0 for _ in before)
            is_mark = pickletools.markobject in opcode.stack_after
            stack += [None if is_mark else size] * len(opcode.stack_after)
            copied += size * (len(opcode.stack_after) > 1)  # DUP
        if copied > MAX_COPIED_OBJECTS:
            break
    return copied
