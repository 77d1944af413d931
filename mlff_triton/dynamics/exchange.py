"""Exchange of temperatures among replicas, by the criterion of Metropolis.

Y. Sugita, Y. Okamoto, Chem. Phys. Lett. 314, 141 (1999),
https://doi.org/10.1016/S0009-2614(99)01123-9. Replicas keep their files and random streams, and
their velocities are rescaled to the new temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from ase import Atoms, units

from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.dynamics.systems import split
from mlff_triton.engine.motion import FloatArray, Observation, State
from mlff_triton.kernels.dynamics.reference.random import EXCHANGE, uniforms


@with_own_settings
def exchange(
    systems: Sequence[Atoms],
    observation: Observation,
    temperatures: Sequence[float],
    seed: int,
    every: int,
) -> tuple[State, tuple[float, ...]]:
    """Let replicas of neighboring temperatures exchange them.

    Even and odd pairs of the ladder take turns.

    Parameters
    ----------
    systems : sequence of Atoms
        The replicas.
    observation : Observation
        Their state and energies.
    temperatures : sequence of float
        Their temperatures in K.
    seed : int
        Key of the random numbers, which also depend on the step.
    every : int
        Steps from one exchange to the next.

    Returns
    -------
    State
        The state, with rescaled velocities.
    tuple of float
        New temperatures in K.
    """
    state, energy = observation.state, observation.energy
    new = list(temperatures)
    ladder = np.argsort(temperatures, kind="stable").tolist()
    first = state.step // every % 2
    pairs = list(zip(ladder[first::2], ladder[first + 1 :: 2], strict=False))
    drawn = uniforms(seed, state.step, EXCHANGE, torch.arange(len(pairs)), 0)[0].tolist()
    for (cold, hot), number in zip(pairs, drawn, strict=True):
        gap = 1 / temperatures[cold] - 1 / temperatures[hot]
        if np.log(number) < gap * (energy[cold] - energy[hot]) / units.kB:
            new[cold], new[hot] = temperatures[hot], temperatures[cold]
    return _rescaled(systems, state, np.array(new) / np.array(temperatures)), tuple(new)


def _rescaled(systems: Sequence[Atoms], state: State, ratios: FloatArray) -> State:
    """Multiply the kinetic energy of each system, and count the difference as work."""
    velocities, work = split(state.velocities, systems), state.work.copy()
    for k, atoms in enumerate(systems):
        if ratios[k] != 1:
            kinetic = 0.5 * (atoms.get_masses() * (velocities[k] ** 2).sum(1)).sum()
            work[k] += (ratios[k] - 1) * kinetic
            velocities[k] = velocities[k] * np.sqrt(ratios[k])
    return replace(state, velocities=np.concatenate(velocities), work=work)


def counted(
    counts: Sequence[tuple[int, int]],
    before: Sequence[float],
    after: Sequence[float],
    turn: int,
) -> tuple[tuple[int, int], ...]:
    """Add one turn to the numbers of attempted and accepted exchanges of neighbors in the ladder.

    Parameters
    ----------
    counts : sequence of (int, int)
        Attempts and exchanges so far of each pair, from the coldest to the hottest; may be empty.
    before, after : sequence of float
        Temperature of each replica in K.
    turn : int
        Number of the turn; even and odd pairs alternate.
    """
    ladder = np.argsort(before, kind="stable").tolist()
    new = [list(pair) for pair in counts] or [[0, 0] for _ in ladder[1:]]
    for k in range(turn % 2, len(new), 2):
        new[k][0] += 1
        new[k][1] += after[ladder[k]] != before[ladder[k]]
    return tuple((attempts, exchanges) for attempts, exchanges in new)
