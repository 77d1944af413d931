"""State of a simulation of N atoms in B systems, and the constants of its integrator.

Units are Å, eV and atomic mass units. Hence the unit of time is Å (amu / eV)^(1/2), about 10.18 fs,
as in ASE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

ATOMS = 256
"""Number of atoms that a program of the integrator moves."""
SHARE = 0.1
"""Largest share of an excess pressure that an action of the barostat relieves."""
JUMP = 0.15
"""Norm of a strain that an action of the barostat must not exceed."""


@dataclass(frozen=True)
class Motion:
    """Positions and velocities, at the end of the last step and within the next one.

    A step is *done* once the forces at its end are known. The integrator then stores the state at
    that time, and continues to the positions of the next step, whose forces are still *pending*. So
    one kernel advances a simulation from forces to forces.

    Attributes
    ----------
    positions : float64 [N, 3]
        Pending positions, Å.
    velocities : float64 [N, 3]
        Velocities that have led to them.
    cell : float64 [B, 3, 3]
        Pending lattice vectors (rows), Å.
    heat : float64 [N]
        Heat that each atom has received from its thermostat until then, and kinetic energy from
        the barostat, eV.
    done_positions, done_velocities, done_cell, done_heat
        These quantities at the end of the last step that is done.
    inverse_mass : float64 [N]
        1/amu; 0 for atoms that do not move.
    system_ptr : int32 [B + 1]
        First atom of each system.
    stream : int32 [B]
        Number of the random stream of each system.
    lost : int32 [B]
        Degrees of freedom removed by the thermostat that rescales velocities: 3 for the momentum, 6
        with the angular momentum, or 0.
    temperature : float64 [B, 2]
        Temperature times Boltzmann's constant at step 0, and its increment per step, eV.
    work : float64 [B]
        Energy that each system has received otherwise, eV.
    scale : float64 [B]
        Factor of the velocities, from the thermostat that rescales them.
    drift : float64 [B, 6]
        Overall motion that it subtracts first: velocity at the origin, and angular velocity.
    stiffness : float64 [B]
        Bulk modulus for a strain that all atoms follow, or a third of the largest elastic constant
        where the shape may change, eV/Å^3; 0 if unknown.
    strain : float64 [B, 2, 3, 3]
        Matrices by which the barostat multiplies positions and velocities (rows) from the right.
    owed : float64 [B, 2]
        Work of the last action of the barostat that is not in ``work`` yet: half of the potential
        energy, as the virial before tells, in eV, and the step with whose virial the other half
        follows, or -1.
    clock : int64 [B, P]
        Steps done, counted by each of the P programs of a system.
    started : int64 [B, P]
        Steps done before the one that was started last.
    pressed : int64 [B]
        Steps done when the barostat last chose a cell.
    stretched : int64 [B, P]
        Steps done when positions were last stretched with it.
    descent : float64 [B, 6]
        State of the minimization of each system: time step, mixing, steps downhill, and what
        `mlff_triton.kernels.dynamics.descent` has decided for the next step.
    progress : float64 [B, 2]
        Iterations of the minimization until the largest force was small enough, and that force in
        eV/Å.
    window : int64 [2]
        Steps done at the start and at the end of the current block of steps.
    oldest : int32 []
        Highest age of the neighbor matrix since it was set to zero, see
        `mlff_triton.kernels.types.status`.
    """

    positions: Tensor
    velocities: Tensor
    cell: Tensor
    heat: Tensor
    done_positions: Tensor
    done_velocities: Tensor
    done_cell: Tensor
    done_heat: Tensor
    inverse_mass: Tensor
    system_ptr: Tensor
    stream: Tensor
    lost: Tensor
    temperature: Tensor
    work: Tensor
    scale: Tensor
    drift: Tensor
    stiffness: Tensor
    strain: Tensor
    owed: Tensor
    clock: Tensor
    started: Tensor
    pressed: Tensor
    stretched: Tensor
    descent: Tensor
    progress: Tensor
    window: Tensor
    oldest: Tensor

    @classmethod
    def zeros(cls, positions: Tensor, cell: Tensor, counts: Tensor) -> Motion:
        """Allocate the state of systems at rest.

        Parameters
        ----------
        positions : float64 [N, 3]
            Becomes the tensor of the pending positions.
        cell : float64 [B, 3, 3]
            Becomes the tensor of the pending cells.
        counts : int64 [B]
            Number of atoms in each system.
        """
        n_atoms, n_systems, device = len(positions), len(cell), positions.device
        programs = -(-int(counts.max()) // ATOMS)

        def floats(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        def integers(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return cls(
            positions=positions,
            velocities=floats(n_atoms, 3),
            cell=cell,
            heat=floats(n_atoms),
            done_positions=positions.clone(),
            done_velocities=floats(n_atoms, 3),
            done_cell=cell.clone(),
            done_heat=floats(n_atoms),
            inverse_mass=floats(n_atoms),
            system_ptr=ends.to(device, torch.int32),
            stream=torch.arange(n_systems, dtype=torch.int32, device=device),
            lost=torch.zeros(n_systems, dtype=torch.int32, device=device),
            temperature=floats(n_systems, 2),
            work=floats(n_systems),
            scale=floats(n_systems) + 1,
            drift=floats(n_systems, 6),
            stiffness=floats(n_systems),
            strain=floats(n_systems, 2, 3, 3),
            owed=floats(n_systems, 2) - 1,
            clock=integers(n_systems, programs),
            started=integers(n_systems, programs) - 1,
            pressed=integers(n_systems) - 1,
            stretched=integers(n_systems, programs) - 1,
            descent=floats(n_systems, 6),
            progress=floats(n_systems, 2),
            window=integers(2),
            oldest=integers(dtype=torch.int32),
        )

    def reset(
        self, step: int, descent: Descent | None = None, *, is_continued: bool = False
    ) -> None:
        """Discard the pending state, and begin after a number of steps.

        Parameters
        ----------
        step : int
            Steps done.
        descent : Descent or None
            The minimization that begins, if any.
        is_continued : bool
            True if a barostat is to act on the state itself.
        """
        self.velocities.zero_()
        self.scale.fill_(1.0)
        self.drift.zero_()
        self.strain.zero_()
        self.owed.fill_(-1)
        self.clock.fill_(step)
        self.started.fill_(step - 1)
        for counter in (self.pressed, self.stretched):
            counter.fill_(step - is_continued)
        self.window.fill_(step)
        self.descent.zero_()
        self.progress.zero_()
        if descent is not None:
            self.descent[:, 0].fill_(descent.first)
            self.descent[:, 1].fill_(descent.mixing)


class Integration(NamedTuple):
    """Constants of an integrator.

    Attributes
    ----------
    timestep : float
        Å (amu / eV)^(1/2).
    seed : int
        Key of all random numbers.
    friction : float
        Friction of the Langevin thermostat in inverse units of time; 0 for none.
    """

    timestep: float
    seed: int = 0
    friction: float = 0.0

    @property
    def damping(self) -> float:
        """Factor by which friction reduces velocities in a step."""
        return math.exp(-self.friction * self.timestep)


class Rescaling(NamedTuple):
    """Constants of the thermostat that rescales velocities.

    Attributes
    ----------
    time : float
        Relaxation time of the kinetic energy, Å (amu / eV)^(1/2).
    """

    time: float

    def decay(self, timestep: float) -> float:
        """Return the factor by which deviations decay in a time step."""
        return math.exp(-timestep / self.time)


class Barostat(NamedTuple):
    """Constants of the barostat.

    Attributes
    ----------
    pressure : float
        eV/Å^3.
    compressibility : float
        Å^3/eV.
    time : float
        Relaxation time of the volume of a system with this compressibility, Å (amu / eV)^(1/2).
    every : int
        Steps from one action to the next.
    isotropic : bool
        If True, the cell keeps its shape.
    """

    pressure: float
    compressibility: float
    time: float
    every: int
    isotropic: bool

    def rate(self, timestep: float) -> float:
        """Return the strain of the volume that a unit of pressure causes at each action, Å^3/eV."""
        return self.compressibility * self.every * timestep / self.time


class Descent(NamedTuple):
    """Constants of a minimization; atoms have unit mass.

    The defaults suit water, peptides and small molecules.

    Attributes
    ----------
    max_force : float
        Largest force on an atom of a converged system, eV/Å.
    max_move : float
        Largest distance that an atom moves in a step, Å.
    first, shortest, longest : float
        Time step at the start and its bounds, Å / eV^(1/2).
    growth, cut : float
        Factors of the time step after steps downhill and after a step uphill.
    delay : int
        Steps downhill before the time step grows.
    mixing : float
        Share of the direction of the forces in the velocities, at the start.
    decay : float
        Factor of the mixing when the time step grows.
    """

    max_force: float
    max_move: float = 0.2
    first: float = 0.1
    shortest: float = 0.02
    longest: float = 1.0
    growth: float = 1.1
    cut: float = 0.5
    delay: int = 5
    mixing: float = 0.1
    decay: float = 0.99
