"""A shared library that has a name, and nothing else: for programs that ask for one and use none.

The file is an empty library by https://refspecs.linuxfoundation.org/elf/elf.pdf: headers, a dynamic
section that gives the name, and a table of symbols with none in it.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import tempfile

SHARED_OBJECT = 3
MACHINES = {"x86_64": 62, "aarch64": 183}
LOAD, DYNAMIC, STACK = 1, 2, 0x6474E551  # without the last one, the stack would become executable
READ_WRITE = 6
NULL, STRING_TABLE, SYMBOL_TABLE, STRINGS_SIZE, SYMBOL_SIZE, OWN_NAME = 0, 5, 6, 10, 11, 14
HEADER_BYTES, SEGMENT_BYTES, SECTION_BYTES, SYMBOL_BYTES, PAGE = 64, 56, 64, 24, 0x1000


def load_stub(name: str) -> None:
    """Load an empty library, so that whatever needs this name from now on is content.

    The dynamic linker of glibc knows a library that is loaded by the name written in it, and by no
    other: not by that of a link to its file, unless the link is on the search path.

    Raises
    ------
    OSError
        If libraries are something else here.
    """
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        raise OSError(f"{name} cannot be made for {platform.system()} on {platform.machine()}")
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(stub_library(name, MACHINES[platform.machine()]))
        file.flush()
        ctypes.CDLL(file.name)  # stays when the file goes


def stub_library(name: str, machine: int) -> bytes:
    """The bytes of an empty library for 64 bits, little-endian."""
    strings = b"\0" + name.encode() + b"\0"
    dynamic_at = HEADER_BYTES + 3 * SEGMENT_BYTES
    dynamic_bytes = 6 * 16
    symbols_at = dynamic_at + dynamic_bytes
    strings_at = symbols_at + SYMBOL_BYTES
    end = strings_at + len(strings)
    magic = b"\x7fELF\x02\x01\x01"
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(magic, SHARED_OBJECT, machine, 1, 0, HEADER_BYTES, 0),
        *(0, HEADER_BYTES, SEGMENT_BYTES, 3, SECTION_BYTES, 0, 0),
    )
    dynamic = struct.pack(
        "<12Q",
        *(OWN_NAME, 1),
        *(STRING_TABLE, strings_at),
        *(SYMBOL_TABLE, symbols_at),
        *(STRINGS_SIZE, len(strings)),
        *(SYMBOL_SIZE, SYMBOL_BYTES),
        *(NULL, 0),
    )
    segments = (
        _segment(LOAD, 0, end, PAGE)
        + _segment(DYNAMIC, dynamic_at, dynamic_bytes, 8)
        + _segment(STACK, 0, 0, 16)
    )
    return header + segments + dynamic + bytes(SYMBOL_BYTES) + strings


def _segment(kind: int, start: int, size: int, alignment: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, READ_WRITE, start, start, start, size, size, alignment)
