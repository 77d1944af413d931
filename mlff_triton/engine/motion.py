"""The interface between a simulation and its integrator on a GPU or the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mlff_triton.errors import SimulationError
from mlff_triton.kernels.types.motion import (
    JUMP,
    Barostat,
    Descent,
    Integration,
    Motion,
    Rescaling,
)

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class State:
    """Everything that the next steps of B systems depend on, in the units of `Motion`.

    Attributes
    ----------
    step : int
        Steps done.
    positions : float64 [N, 3]
        Å.
    velocities : float64 [N, 3]
        Å per unit of time.
    cell : float64 [B, 3, 3]
        Lattice vectors (rows), Å.
    heat : float64 [N]
        Heat that each atom has received from its thermostat, and kinetic energy from a barostat,
        eV.
    work : float64 [B]
        Energy that each system has received otherwise, eV.
    """

    step: int
    positions: FloatArray
    velocities: FloatArray
    cell: FloatArray
    heat: FloatArray
    work: FloatArray


@dataclass(frozen=True)
class Observation:
    """The state of B systems, and the model's results for it.

    Attributes
    ----------
    state : State
        The state.
    forces : float64 [N, 3]
        eV/Å.
    energy : float64 [B]
        Potential energies, eV.
    virial : float64 [B, 3, 3]
        ``dE/dstrain``, eV.
    progress : float64 [B, 2]
        Progress of a minimization, see `Motion`.
    uncertainty : float64 [N], optional
        Expected error of the force on each atom in eV/Å, if the model knows it.
    """

    state: State
    forces: FloatArray
    energy: FloatArray
    virial: FloatArray
    progress: FloatArray
    uncertainty: FloatArray | None = None


class Dynamics(Protocol):
    """The motion of B systems, in blocks of steps that are queued and then collected.

    The first step of a minimization starts from the given positions, and is done as soon as their
    forces are known.
    """

    def begin(self, state: State, conditions: Conditions, *, is_continued: bool) -> Observation:
        """Compute forces, and prepare the next step.

        Parameters
        ----------
        state : State
            The systems.
        conditions : Conditions
            Integrator, thermostats and barostat, from here on.
        is_continued : bool
            True if the last step of this state was taken under the same conditions.
        """

    def queue(self, stop: int, *, is_observed: bool) -> None:
        """Queue all steps up to ``stop``; at most `depth` blocks may be queued at a time."""

    def collect(self) -> Observation | None:
        """Wait for the oldest block, and return what was observed at its end, if anything."""

    def observe(self) -> Observation:
        """Return the observation at the end of the last block, when no block is queued."""

    def suspect(self) -> Suspect | None:
        """Return the atom to blame for an error; None if no forces are known."""

    @property
    def step(self) -> int:
        """Number of steps done."""

    @property
    def depth(self) -> int:
        """Number of blocks that may be queued."""


class Conditions(NamedTuple):
    """Constants of a stage of a simulation.

    Attributes
    ----------
    integration : Integration
        Time step, seed and Langevin thermostat.
    temperature : float64 [B, 2]
        As in `Motion`.
    stream : int32 [B]
        Number of the random stream of each system.
    lost : int32 [B]
        As in `Motion`.
    rescaling : Rescaling or None
        The thermostat that rescales velocities.
    barostat : Barostat or None
        The barostat.
    descent : Descent or None
        If given, energies are minimized instead.
    stiffness : float64 [B] or None
        As in `Motion`, for a barostat; None if unknown.
    most_uncertain : float or None
        Largest expected error of a force in eV/Å; a step that exceeds it ends the motion with an
        `UncertainAtomError`.
    """

    integration: Integration
    temperature: FloatArray
    stream: NDArray[np.int32]
    lost: NDArray[np.int32]
    rescaling: Rescaling | None = None
    barostat: Barostat | None = None
    descent: Descent | None = None
    stiffness: FloatArray | None = None
    most_uncertain: float | None = None

    @property
    def constants(self) -> tuple[object, ...]:
        """Constants of captured launches; temperatures and streams may change."""
        own = self.integration, self.rescaling, self.barostat, self.descent
        return *own, self.most_uncertain


class UncertainAtomError(SimulationError):
    """The uncertainty of the force on an atom is larger than a simulation allows.

    Attributes
    ----------
    step : int
        Number of the step.
    positions : float64 [N, 3]
        Positions of all atoms in Å in this step.
    cell : float64 [B, 3, 3]
        Lattice vectors (rows) in Å.
    uncertainty : float64 [N]
        Expected error of the force on each atom in eV/Å.
    """

    step: int
    positions: FloatArray
    cell: FloatArray
    uncertainty: FloatArray

    @classmethod
    def of(
        cls, step: int, positions: FloatArray, cell: FloatArray, uncertainty: FloatArray
    ) -> UncertainAtomError:
        """Return the error; parameters have the names of the attributes."""
        error = cls(f"the model expects an error of {uncertainty.max():.3g} eV/Å in a force")
        error.step, error.positions = step, positions
        error.cell, error.uncertainty = cell, uncertainty
        return error


def check_strain(motion: Motion) -> None:
    """Raise a `SimulationError` if the barostat would have strained a cell too much. This waits."""
    if motion.strain.isnan().any():
        step, share = int(motion.pressed.max()), round(100 * JUMP)
        raise SimulationError(
            f"the volume jumped after step {step}, as the barostat would have strained the cell by "
            f"more than {share} % at once: use a lower compressibility, a longer barostat time or "
            "a pressure closer to that of the structure"
        )


class Suspect(NamedTuple):
    """An atom that probably caused an error, and the size of the force on it in eV/Å."""

    atom: int
    force: float

    @classmethod
    def of(cls, positions: FloatArray, forces: FloatArray, atom: int | None = None) -> Suspect:
        """Return the first atom that is not finite, or the one with the largest force.

        Parameters
        ----------
        positions : float64 [N, 3]
            Å.
        forces : float64 [N, 3]
            eV/Å.
        atom : int, optional
            The atom to blame, if that is known.
        """
        force = np.linalg.norm(forces, axis=1)
        if atom is not None:
            return cls(atom, float(force[atom]))
        lost = ~np.isfinite(positions).all(1)
        for bad in (lost, ~np.isfinite(force)):
            if bad.any():
                return cls(int(bad.argmax()), float(force[bad.argmax()]))
        return cls(int(force.argmax()), float(force.max()))
