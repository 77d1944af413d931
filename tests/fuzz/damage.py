"""Damage to bytes, and values and files that nobody means."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

EXTREMES: tuple[float, ...] = (
    *(0, 1, -1, 2, 3, 7, 0.5, -0.0, 20_000, 10**9, 2**31, 2**63, 10**30),
    *(1e5, 1e-5, 1e30, 1e-30, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -float("inf")),
)
STRINGS = (
    *("", " ", "x", "None", "1e999", "9" * 5000, "A" * 100_000, "\0", "\x1b[31mred\x1b[0m"),
    *("\x9b31m", "é", "\U0001f9ea", "\ud800", "../..", "~nosuchuser/x", "$HOME", "%s%n", "{0}"),
)
SPECIAL_FILES = ("fifo", "zero", "sparse", "directory", "empty", "unreadable", "loop", "missing")


def choice(rng: np.random.Generator, options: Any) -> Any:
    """Draw one of several objects, which NumPy must not convert to its own types."""
    options = list(options)
    return options[rng.integers(len(options))]


def extreme(rng: np.random.Generator) -> Any:
    """Draw a value of any JSON type."""
    kind = rng.integers(6)
    if kind < 3:
        return choice(rng, EXTREMES)
    if kind == 3:
        return choice(rng, STRINGS)
    if kind == 4:
        return choice(rng, (None, True, False, [], {}, [[]], {"a": {}}, [1, "a", None]))
    return nested(int(rng.integers(1, 300)))  # which torch.save can write


def nested(depth: int) -> Any:
    """Return lists within lists."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def damaged(rng: np.random.Generator, content: bytes) -> bytes:
    """Flip bits, or cut, extend, overwrite, repeat or swap parts of a file."""
    data = bytearray(content)
    start, stop = sorted(int(x) for x in rng.integers(0, len(data) + 1, 2))
    stop = min(stop, start + 200)
    action = rng.integers(7)
    if action < 3 and data:
        for position in rng.integers(0, len(data), 1 + rng.geometric(0.5)):
            data[position] ^= 1 << int(rng.integers(8))
    elif action == 3:
        del data[start:]
    elif action == 4:
        data += rng.bytes(int(rng.integers(1, 100)))
    elif action == 5:
        data[start:stop] = rng.bytes(stop - start)
    else:
        data[start:stop] = data[start:stop] * int(rng.integers(0, 4))
    return bytes(data)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container of a tree of dicts and lists with each of its keys."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from places(value)


def replace_one(rng: np.random.Generator, tree: Any, value: Any) -> None:
    """Replace a value anywhere in a tree of dicts and lists, or remove it."""
    container, key = choice(rng, places(tree))
    if rng.random() < 0.1:
        del container[key]
    else:
        container[key] = value


def make_special(kind: str, path: Path) -> None:
    """Put something other than an ordinary file at a path."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(10 << 30)
    elif kind == "directory":
        path.mkdir()
    elif kind == "unreadable":
        path.write_text("secret")
        path.chmod(0)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "empty":
        path.touch()


def deflated_zeros(size: int) -> bytes:
    """Return a raw deflate stream of zeros, at a thousandth of their size."""
    block = 1 << 20
    packer = zlib.compressobj(wbits=-15)
    one = packer.compress(bytes(block)) + packer.flush(zlib.Z_FULL_FLUSH)
    # A block after a full flush refers to nothing before it, so it can be repeated.
    return one * (size // block) + zlib.compressobj(wbits=-15).flush()
