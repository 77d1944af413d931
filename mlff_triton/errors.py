"""Exceptions that `mlff_triton` raises on purpose.

All derive from `MlffTritonError`. Each message says in one line what is wrong and what to do.
Exceptions caused by a value also derive from `ValueError`, as callers expect.
"""

from __future__ import annotations


class MlffTritonError(Exception):
    """Base class of all exceptions that the package raises on purpose."""


class InputError(MlffTritonError, ValueError):
    """A structure, an array or an option is invalid."""


class UnknownElementError(InputError):
    """The structure contains an element that the model was not made for."""


class OverlappingAtomsError(InputError):
    """Two atoms coincide."""

    atoms: tuple[int, int] | None = None
    """Indices of the two atoms, if known, for front ends that number atoms differently."""


class CheckpointError(MlffTritonError):
    """A checkpoint is missing, truncated, corrupt or unsafe to load."""


class UnsupportedModelError(CheckpointError):
    """A checkpoint is valid, but the package does not implement its model."""


class CheckpointWarning(UserWarning):
    """A checkpoint holds something that changes results in other packages but not here."""


class DispersionWarning(UserWarning):
    """A dispersion correction does not fit the training data of the model."""


class DecouplingWarning(UserWarning):
    """A free energy of decoupling lacks a correction that its user has to add."""


class EmbeddingWarning(UserWarning):
    """The parts of a mixed system do not fit together."""


class BackendError(MlffTritonError):
    """The requested backend or device cannot serve the model; the message names one that can."""


class DeviceMemoryError(BackendError, RuntimeError):
    """The GPU has too little memory. PyTorch's own error is a `RuntimeError`, too."""


class SimulationError(MlffTritonError):
    """A simulation left the range in which its potential or its time step is valid."""


class OutputError(MlffTritonError, OSError):
    """A result cannot be written to the requested file."""
