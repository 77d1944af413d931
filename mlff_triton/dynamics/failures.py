"""Failures of steps: energies and temperatures that are not plausible, and the atom to blame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ase import Atoms

from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics.outputs import LogRow
from mlff_triton.dynamics.systems import name_atom, split
from mlff_triton.engine.motion import Observation, Suspect


def find_failure(
    systems: Sequence[Atoms],
    rows: Sequence[LogRow],
    temperatures: Sequence[float],
    observation: Observation,
) -> tuple[str, Suspect] | None:
    """Return what is not plausible in a step, and the atom to blame; None if nothing is.

    Parameters
    ----------
    systems : sequence of Atoms
        The systems.
    rows : sequence of LogRow
        The log row of each system.
    temperatures : sequence of float
        Target temperature of each system in K.
    observation : Observation
        Positions and forces.
    """
    state, first = observation.state, 0
    positions, forces = (split(x, systems) for x in (state.positions, observation.forces))
    for k, (row, target) in enumerate(zip(rows, temperatures, strict=True)):
        limit = 10 * target + 10_000
        if not (np.isfinite(row.potential_eV) and row.temperature_K <= limit):  # NaN too
            reason = f"energy {row.potential_eV:g} eV, temperature {row.temperature_K:.4g} K"
            moving = ~fixed_atoms(systems[k])[:, None]
            atom, force = Suspect.of(positions[k], forces[k] * moving)
            return reason, Suspect(first + atom, force)
        first += len(systems[k])
    return None


def describe(suspect: Suspect | None, systems: Sequence[Atoms]) -> str:
    """Return a phrase on the atom to blame, or nothing if there is none."""
    if suspect is None:
        return ""
    name = name_atom(suspect.atom, systems)
    return f" at {name}, where the force is {suspect.force:.3g} eV/Å"
