"""Stiffness of systems against the strains of a barostat, from finite differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from ase import Atoms

from mlff_triton.dynamics.systems import split
from mlff_triton.engine.motion import Conditions, Dynamics, FloatArray, Observation, State
from mlff_triton.errors import InputError

STRAIN = 1e-3


def measure_stiffness(
    systems: Sequence[Atoms], dynamics: Dynamics, state: State, conditions: Conditions
) -> FloatArray:
    """Return the stiffness of each system, eV/Å^3, as in `Motion`; see there for its use.

    The pressure tensor is computed at small strains that atoms follow: a compression or, if the
    shape may change, six orthogonal strains. An ideal gas is added.

    Parameters
    ----------
    systems : sequence of Atoms
        The systems.
    dynamics : Dynamics
        Moves these systems. It must begin again afterwards.
    state : State
        Their state.
    conditions : Conditions
        Conditions with a barostat.

    Raises
    ------
    InputError
        If the calculator has no stress.
    """
    assert conditions.barostat is not None  # because nothing else needs this
    strains = compressions() if conditions.barostat.isotropic else symmetric_strains()
    start = _pressures(dynamics.begin(state, conditions, is_continued=False))
    if not np.isfinite(start).all():
        raise InputError(
            "npt needs stresses, which this calculator does not compute: use nvt, or a calculator "
            "that does"
        )
    responses = np.zeros((len(systems), len(strains), len(strains)))
    for k, strain in enumerate(strains):
        strained = _strained(state, systems, np.eye(3) - STRAIN * strain)
        found = _pressures(dynamics.begin(strained, conditions, is_continued=False))
        responses[:, k] = np.einsum("bij,lij->bl", found - start, strains) / STRAIN
    stiffest = np.linalg.eigvalsh((responses + responses.transpose(0, 2, 1)) / 2)[:, -1] / 3
    thermal = conditions.temperature @ [1.0, state.step]
    volumes = abs(np.linalg.det(state.cell))
    gas = 5 / 3 * thermal * np.array([len(atoms) for atoms in systems]) / volumes
    return np.asarray(np.maximum(stiffest, 0.0) + gas)


def compressions() -> FloatArray:
    """Return the strain that only changes the volume, with norm 1, [1, 3, 3]."""
    return np.asarray(np.eye(3)[None] / np.sqrt(3))


def symmetric_strains() -> FloatArray:
    """Return an orthonormal basis of symmetric matrices, [6, 3, 3]."""
    basis = np.zeros((6, 3, 3))
    for k, (i, j) in enumerate(zip(*np.triu_indices(3), strict=True)):
        basis[k, i, j] = basis[k, j, i] = 1.0 if i == j else np.sqrt(0.5)
    return basis


def _strained(state: State, systems: Sequence[Atoms], stretch: FloatArray) -> State:
    positions = np.concatenate([part @ stretch for part in split(state.positions, systems)])
    return replace(state, positions=positions, cell=state.cell @ stretch)


def _pressures(observation: Observation) -> FloatArray:
    """Return the pressure tensor of each system without its kinetic part, eV/Å^3."""
    volumes = abs(np.linalg.det(observation.state.cell))
    return np.asarray(-observation.virial / volumes[:, None, None])
