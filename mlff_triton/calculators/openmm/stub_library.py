"""An empty shared library that stands in for one that is required but never used.

OpenMM-Torch's wheels list ``libnvrtc.so.12`` among the libraries that they need, although they call
none of its functions: PyTorch's ``TorchConfig.cmake`` adds NVRTC to everything that is linked with
PyTorch (https://github.com/pytorch/pytorch/issues/64692). PyTorch for CUDA 13 comes with
``libnvrtc.so.13`` instead, so the wheels do not load. We know of no issue of OpenMM-Torch about
NVRTC. A related one, https://github.com/openmm/openmm-torch/issues/174, is about
``libcudart.so.12``, which its plug-in does not find in PyPI's package.

The stub is loaded only if OpenMM-Torch fails to load for lack of this library, no installed package
provides it, and PyTorch was built for another major version of CUDA; see
`mlff_triton.calculators.openmm.torch_force`. It affects the running process only.

The file follows https://refspecs.linuxfoundation.org/elf/elf.pdf. It consists of headers, a dynamic
section with the name of the library, and an empty symbol table.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import tempfile

SHARED_OBJECT = 3
MACHINES = {"x86_64": 62, "aarch64": 183}
LOAD, DYNAMIC, STACK = 1, 2, 0x6474E551  # without STACK, the stack would become executable
READ_WRITE = 6
NULL, STRING_TABLE, SYMBOL_TABLE, STRINGS_SIZE, SYMBOL_SIZE, OWN_NAME = 0, 5, 6, 10, 11, 14
HEADER_BYTES, SEGMENT_BYTES, SECTION_BYTES, SYMBOL_BYTES, PAGE = 64, 56, 64, 24, 0x1000


def load_stub(name: str) -> None:
    """Load an empty library, which then satisfies every library that needs one of this name.

    The dynamic linker of glibc identifies a loaded library by the name stored in the file. The name
    of a link to the file counts only if the link is on the search path.

    Raises
    ------
    OSError
        If this is not Linux on a known processor.
    """
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        raise OSError(
            f"a stub of {name} cannot be made for {platform.system()} on {platform.machine()}"
        )
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(stub_library(name, MACHINES[platform.machine()]))
        file.flush()
        ctypes.CDLL(file.name)  # remains loaded when the file is deleted


def stub_library(name: str, machine: int) -> bytes:
    """Return the content of an empty library, 64 bits, little-endian."""
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
