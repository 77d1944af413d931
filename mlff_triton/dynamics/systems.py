"""Structures and the states of simulations, converted to one another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator

from mlff_triton._common.text import printable
from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics.host_dynamics import HostDynamics
from mlff_triton.dynamics.threads import warn_if_busy
from mlff_triton.engine.motion import Dynamics, FloatArray, State
from mlff_triton.engine.stepwise_dynamics import StepwiseDynamics
from mlff_triton.errors import InputError

INPUT = "input"
"""Key of the name of a structure's input in its information, if there are several structures."""


def make_dynamics(
    systems: Sequence[Atoms], calculator: Calculator, threads: int | None = None
) -> Dynamics:
    """Return the dynamics of systems: our calculator's engine if it can, otherwise the host.

    Parameters
    ----------
    systems : sequence of Atoms
        The systems.
    calculator : Calculator
        Any ASE calculator.
    threads : int, optional
        Number of threads of PyTorch on the host; by default as many as it uses elsewhere.
    """
    of_engine = getattr(calculator, "dynamics", None)
    dynamics: Dynamics | None = of_engine(systems) if of_engine else None
    if dynamics is None:
        dynamics = HostDynamics(systems, calculator)
    if isinstance(dynamics, StepwiseDynamics) and threads is not None:
        dynamics.threads = threads
        warn_if_busy(threads)
    return dynamics


def state_of(systems: Sequence[Atoms]) -> State:
    """Return the state of systems before the first step, with fixed atoms at rest."""
    moving = np.concatenate([~fixed_atoms(atoms) for atoms in systems])
    velocities = np.concatenate([atoms.get_velocities() for atoms in systems])
    return State(
        step=0,
        positions=np.concatenate([atoms.get_positions() for atoms in systems]),
        velocities=np.where(moving[:, None], velocities, 0.0),
        cell=np.stack([atoms.cell.array for atoms in systems]),
        heat=np.zeros(sum(len(atoms) for atoms in systems)),
        work=np.zeros(len(systems)),
    )


def put_state(state: State, systems: Sequence[Atoms]) -> None:
    """Set positions, velocities and the periodic cell vectors of systems."""
    parts = zip(
        systems, split(state.positions, systems), split(state.velocities, systems), strict=True
    )
    for k, (atoms, positions, velocities) in enumerate(parts):
        atoms.set_positions(positions, apply_constraint=False)
        atoms.set_momenta(atoms.get_masses()[:, None] * velocities, apply_constraint=False)
        atoms.cell.array[atoms.pbc] = state.cell[k][atoms.pbc]


def split(values: FloatArray, systems: Sequence[Atoms]) -> list[FloatArray]:
    """Split an array of all atoms into one per system."""
    return np.split(values, np.cumsum([len(atoms) for atoms in systems])[:-1])


def name_atom(atom: int, systems: Sequence[Atoms]) -> str:
    """Describe an atom of a batch, such as "atom 4 (H) of replica 2"; both are counted from 0.

    The name of an input follows if there are several.
    """
    replica = 0
    while atom >= len(systems[replica]):
        atom -= len(systems[replica])
        replica += 1
    element = systems[replica].symbols[atom]
    suffix = f" of replica {replica}" if len(systems) > 1 else ""
    if INPUT in systems[replica].info:
        suffix += f" ({printable(str(systems[replica].info[INPUT]))})"
    return f"atom {atom} ({element}){suffix}"


def repartition_masses(atoms: Atoms, hydrogen_mass: float) -> None:
    """Make hydrogen atoms heavier, each at the expense of its nearest heavy atom.

    This slows down the fastest vibrations, so that time steps may be longer, and changes no
    property that depends on positions alone. Hydrogen atoms that are fixed keep their mass.

    Parameters
    ----------
    atoms : Atoms
        The system. Modified in place.
    hydrogen_mass : float
        New mass of hydrogen atoms in amu.

    Raises
    ------
    InputError
        If a heavy atom would become lighter than hydrogen.
    """
    masses, is_hydrogen = atoms.get_masses(), atoms.numbers == 1
    heavy = np.flatnonzero(~is_hydrogen)
    if not len(heavy):
        raise InputError("hydrogen_mass needs other atoms to take the mass from")
    for atom in np.flatnonzero(is_hydrogen & ~fixed_atoms(atoms)):
        distances = atoms.get_distances(atom, heavy, mic=bool(atoms.pbc.any()))
        masses[heavy[distances.argmin()]] -= hydrogen_mass - masses[atom]
        masses[atom] = hydrogen_mass
    if (masses[heavy] < hydrogen_mass).any():
        atom = heavy[masses[heavy].argmin()]
        raise InputError(
            f"hydrogen_mass={hydrogen_mass:g} leaves atom {atom} with {masses[atom]:.3g} amu: use "
            "3 or less"
        )
    velocities = atoms.get_velocities()
    atoms.set_masses(masses)
    if atoms.has("momenta"):
        atoms.set_momenta(masses[:, None] * velocities, apply_constraint=False)
