"""Failures of steps: values that are not plausible, and the atom to blame.

Four rules detect a run that has fallen apart, even if a thermostat keeps its temperature:

- The energy is a number, and the temperature not absurd.
- The volume has not grown tenfold.
- The conserved energy has not drifted far since the run began or continued, see `largest_drift`.
- Covalent bonds of the start are not gone, unless reactions are allowed, see
  `mlff_triton.dynamics.bonds`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ase import Atoms, units

from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics.bonds import Bonds
from mlff_triton.dynamics.outputs import LogRow
from mlff_triton.dynamics.systems import name_atom, split
from mlff_triton.engine.motion import Observation, Suspect

DRIFT = 0.1
"""Drift of the conserved energy that is allowed at once in eV/atom, and per ps: a hundred times
that of a time step that is barely short enough."""
GROWTH = 10.0
"""Factor by which a volume must not grow in a stage: nothing then holds the system together."""
LONGEST_STEP = 2.0  # fs, for an atom with the mass of hydrogen
HYDROGEN_MASS = 1.008  # amu


class TimeStepWarning(UserWarning):
    """A time step is too long for the vibrations of the lightest atom."""


@dataclass(frozen=True)
class Failure:
    """A value that is not plausible in a step.

    Attributes
    ----------
    reason : str
        Phrase that names the value.
    suspect : Suspect or None
        The atom to blame.
    advice : str
        Remedy other than a smaller time step, if there is one.
    """

    reason: str
    suspect: Suspect | None
    advice: str = ""


def warn_of_time_step(systems: Sequence[Atoms], timestep: float) -> None:
    """Warn if a time step, in fs, is too long for the lightest atom.

    The longest one is 2 fs for hydrogen, and grows with the square root of the mass, as periods of
    vibrations do.

    Warns
    -----
    TimeStepWarning
        If it is too long.
    """
    masses = np.concatenate([atoms.get_masses()[~fixed_atoms(atoms)] for atoms in systems])
    lightest = float(masses.min())
    longest = LONGEST_STEP * (lightest / HYDROGEN_MASS) ** 0.5
    if timestep <= longest * (1 + 1e-6):
        return
    has_hydrogen = lightest < HYDROGEN_MASS + 0.1
    remedy = ", or make hydrogen heavier (--hydrogen-mass 3)" if has_hydrogen else ""
    warnings.warn(
        f"a time step of {timestep:g} fs is too long for atoms of {lightest:.3g} amu, so that the "
        f"run may fall apart: use at most {longest:.2g} fs, and better a quarter of it{remedy}",
        TimeStepWarning,
        stacklevel=4,
    )


def largest_drift(row: LogRow, first: LogRow) -> float:
    """Return the largest allowed change of the conserved energy between two rows, in eV/atom."""
    return DRIFT * (1 + row.time_ps - first.time_ps) + 2 * units.kB * row.target_K


def find_failure(
    systems: Sequence[Atoms],
    rows: Sequence[LogRow],
    observation: Observation,
    first: Sequence[LogRow],
    bonds: Bonds | None,
) -> Failure | None:
    """Return the implausible value of a step; None if all are plausible.

    Parameters
    ----------
    systems : sequence of Atoms
        The systems.
    rows : sequence of LogRow
        The log row of each system.
    observation : Observation
        Positions and forces.
    first : sequence of LogRow
        Rows at the start of the stage, or at the continuation of the run.
    bonds : Bonds or None
        Bonds that must not break, if any.
    """
    for k, row in enumerate(rows):
        is_cool = row.temperature_K <= 10 * row.target_K + 10_000  # False for NaN
        if not (np.isfinite(row.potential_eV) and is_cool):
            reason = f"energy {row.potential_eV:g} eV, temperature {row.temperature_K:.4g} K"
            return Failure(reason, _suspect(systems, observation, k))
    for row, old in zip(rows, first, strict=True):
        if row.volume_A3 and old.volume_A3 and row.volume_A3 > GROWTH * old.volume_A3:
            reason = f"the volume has grown from {old.volume_A3:.4g} to {row.volume_A3:.4g} Å^3"
            return Failure(reason, None, "use a higher pressure or a lower temperature")
    drifts = [
        (row.conserved_eV - old.conserved_eV) / len(atoms)
        for row, old, atoms in zip(rows, first, systems, strict=True)
    ]
    worst = int(np.argmax(np.abs(drifts)))
    if abs(drifts[worst]) > largest_drift(rows[worst], first[worst]):
        reason = f"the conserved energy has drifted by {drifts[worst]:.2g} eV per atom"
        return Failure(reason, _suspect(systems, observation, worst))
    return None if bonds is None else _broken_bond(systems, observation, bonds)


def _suspect(systems: Sequence[Atoms], observation: Observation, system: int) -> Suspect:
    """Return the atom of a system that is to blame for a failure."""
    moves = ~np.concatenate([fixed_atoms(atoms) for atoms in systems])[:, None]
    positions = split(observation.state.positions, systems)[system]
    atom, force = Suspect.of(positions, split(observation.forces * moves, systems)[system])
    return Suspect(sum(len(atoms) for atoms in systems[:system]) + atom, force)


def _broken_bond(
    systems: Sequence[Atoms], observation: Observation, bonds: Bonds
) -> Failure | None:
    """Return the longest broken bond as a failure; None if no bond is broken."""
    gone = bonds.broken(observation.state, systems)
    if not len(gone):
        return None
    lengths = bonds.lengths(observation.state, systems)
    worst = gone[lengths[gone].argmax()]
    atom, other = bonds.pairs[worst].tolist()
    force = float(np.linalg.norm(observation.forces[atom]))
    count = f", and {len(gone) - 1} other bonds" if len(gone) > 1 else ""
    return Failure(
        f"its bond to {name_atom(other, systems)} has broken and is {lengths[worst]:.3g} Å "
        f"long{count}",
        Suspect(atom, force),
        "use --reactive if bonds may break",
    )


def describe(suspect: Suspect | None, systems: Sequence[Atoms]) -> str:
    """Return a phrase on the atom to blame, or nothing if there is none."""
    if suspect is None or suspect.force == 0:  # for example if all atoms are far apart
        return ""
    name = name_atom(suspect.atom, systems)
    return f" at {name}, where the force is {suspect.force:.3g} eV/Å"
