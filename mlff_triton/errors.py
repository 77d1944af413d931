"""Every exception that `mlff_triton` raises on purpose.

All derive from `MlffTritonError`; each message says in one line what is wrong and what to do.
The ones caused by a value also derive from `ValueError`, so existing handlers keep working.
"""


class MlffTritonError(Exception):
    """Base class: catch this to catch every deliberate error of the package."""


class InputError(MlffTritonError, ValueError):
    """A structure, an array or an option that cannot be computed with."""


class UnknownElementError(InputError):
    """The structure holds an element that the model was not made for."""


class OverlappingAtomsError(InputError):
    """Two atoms sit at the same point."""


class CheckpointError(MlffTritonError):
    """A checkpoint is missing, truncated, corrupt or not safe to load."""


class UnsupportedModelError(CheckpointError):
    """A sound checkpoint of a model that this package does not implement."""


class BackendError(MlffTritonError):
    """The requested backend or device cannot serve this model; the message names one that can."""


class SimulationError(MlffTritonError):
    """A simulation left the region where its potential or its time step makes sense."""


class OutputError(MlffTritonError, OSError):
    """A result cannot be written where it was asked to go."""
