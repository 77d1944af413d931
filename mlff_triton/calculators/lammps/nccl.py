"""Tensors that go from GPU to GPU, by NCCL or, on AMD, by RCCL.

PyTorch's own process groups send on streams of their own, and belong to the program that uses this
package. So the library that PyTorch has loaded is called directly, on the stream of a step, where a
CUDA graph captures it like a kernel.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

import torch

from mlff_triton.calculators.lammps.exchange import Messages
from mlff_triton.errors import BackendError

LIBRARIES = "libnccl.so.2", "librccl.so.1"
_BYTES = 1  # ncclUint8


class _UniqueId(ctypes.Structure):
    """Name of a communicator, ``ncclUniqueId``."""

    _fields_ = (("internal", c_char * 128),)


def load_library() -> ctypes.CDLL | None:
    """Return the library that PyTorch uses, or None if it has none."""
    for name in LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.ncclGetErrorString.restype = c_char_p
        library.ncclCommInitRank.argtypes = c_void_p, c_int, _UniqueId, c_int
        message = c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p
        library.ncclSend.argtypes = library.ncclRecv.argtypes = message
        return library
    return None


class DeviceTransport:
    """Messages between the GPUs of all ranks; see `mlff_triton.calculators.lammps.exchange`.

    All ranks construct it together. Each has a GPU of its own, which is the current one.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        Communicator of all ranks.
    library : ctypes.CDLL
        From `load_library`.

    Raises
    ------
    BackendError
        If the GPUs cannot reach one another.
    """

    is_queued = True

    def __init__(self, comm: Any, library: ctypes.CDLL) -> None:
        self._library = library
        name = _UniqueId()
        if comm.rank == 0:
            self._check(library.ncclGetUniqueId(byref(name)))
        name = _UniqueId.from_buffer_copy(comm.bcast(bytes(name)))
        self._comm = c_void_p()
        self._check(library.ncclCommInitRank(byref(self._comm), comm.size, name, comm.rank))
        self._connect(comm.rank, comm.size)

    def _connect(self, rank: int, size: int) -> None:
        """Send a number to each rank, as the first messages make connections, and wait for others.

        The capture of a graph must not wait.
        """
        others = [other for other in range(size) if other != rank]
        numbers = torch.zeros(2, len(others), device="cuda")
        sent, received = (list(zip(others, row.split(1), strict=True)) for row in numbers)
        self.deliver(sent, received)
        torch.cuda.current_stream().synchronize()

    def deliver(self, sent: Messages, received: Messages) -> None:
        """Queue messages on the current stream; see `Transport.deliver`."""
        library, stream = self._library, torch.cuda.current_stream().cuda_stream
        self._check(library.ncclGroupStart())
        for call, messages in ((library.ncclSend, sent), (library.ncclRecv, received)):
            for rank, tensor in messages:
                given = tensor.data_ptr(), tensor.numel() * tensor.element_size(), _BYTES
                self._check(call(*given, rank, self._comm, stream))
        self._check(library.ncclGroupEnd())

    def _check(self, code: int) -> None:
        if code:
            reason = self._library.ncclGetErrorString(code).decode()
            raise BackendError(
                f"GPUs cannot exchange data ({reason}): set NCCL_DEBUG=WARN for more"
            )
