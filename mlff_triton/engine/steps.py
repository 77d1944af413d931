"""Steps of one model on one device, as the engine calls them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from mlff_triton.engine.batch import Batch, IntArray
from mlff_triton.engine.motion import Dynamics
from mlff_triton.model.prediction import Prediction
from mlff_triton.neighbors.box import FloatArray

CANNOT_PREPARE = "only single models on a GPU can be prepared: use compute"

ResidentStep = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""A step of a resident system: positions [N, 3] and the cell [3, 3], or None if it is unchanged, to
the energy, float64 [] on the CPU, and forces [N, 3] on the computing device, of the positions'
dtype."""


class Units(NamedTuple):
    """Units of the program that a resident system serves.

    Attributes
    ----------
    length : float
        Its unit of length in Å.
    energy : float
        Its unit of energy in eV.
    """

    length: float = 1.0
    energy: float = 1.0


class Steps(ABC):
    """Steps of one model on one device, with the neighbor lists that they reuse."""

    @property
    @abstractmethod
    def n_builds(self) -> int:
        """Number of neighbor lists built so far."""

    @abstractmethod
    def check_species(self, numbers: IntArray) -> None:
        """Raise `UnknownElementError` unless the model knows all atomic numbers, int64 [N]."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> Prediction:
        """Compute energies, forces and virials of a batch; return them on the CPU."""

    @abstractmethod
    def prepare(self, batch: Batch) -> Callable[[], Prediction]:
        """Return a function that queues the step of a batch, for measurements.

        The function neither waits nor checks the status. The next step of a batch of this size
        overwrites the tensors it returns.

        Raises
        ------
        BackendError
            If steps are not queued on a GPU.
        """

    @abstractmethod
    def resident(self, batch: Batch, units: Units) -> ResidentStep:
        """Return the step of one system, whose positions may differ at each call."""

    def dynamics(self, batch: Batch, masses: FloatArray) -> Dynamics | None:  # noqa: ARG002
        """Return what moves the atoms of a batch on a GPU, or None if the host has to.

        Parameters
        ----------
        batch : Batch
            The systems.
        masses : float64 [N]
            amu.
        """
        return None
