"""Settings of a stage as constants of the integrator, in the units of ASE."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from ase import Atoms, units

from mlff_triton.calculators._fixed_atoms import fixed_atoms
from mlff_triton.dynamics.settings import Settings
from mlff_triton.dynamics.stages import Span
from mlff_triton.engine.motion import Conditions, FloatArray
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.motion import Barostat, Descent, Integration, Rescaling

PRESS_EVERY = 10  # steps


def check_ensembles(systems: Sequence[Atoms], settings: Settings) -> None:
    """Raise an `InputError` if systems do not suit the stages of a run."""
    ensembles = [stage.ensemble for stage in settings.stages]
    fixed = [fixed_atoms(atoms) for atoms in systems]
    if "npt" in ensembles and any(one.any() for one in fixed):
        raise InputError(
            "npt moves every atom with the cell, so that none can be fixed: use nvt or nve, or fix "
            "no atoms"
        )
    if "npt" in ensembles and not all(atoms.pbc.all() for atoms in systems):
        raise InputError("npt needs a cell that is periodic in three directions: use nvt or nve")
    if settings.heat_from is not None and ensembles[0] == "nve":
        raise InputError("heat_from needs a thermostat in the first stage: use nvt or npt there")
    if settings.exchange_every and (len(systems) < 2 or set(ensembles) != {"nvt"}):
        raise InputError("replicas exchange temperatures in nvt only, and two or more are needed")
    if settings.exchange_every and any(stage.temperature is not None for stage in settings.stages):
        raise InputError("replicas that exchange temperatures need the same ones in all stages")
    freedom = [
        3 * int((~one).sum()) - lost_freedom(atoms)
        for one, atoms in zip(fixed, systems, strict=True)
    ]
    if settings.thermostat == "rescaling" and min(freedom) < 3:
        raise InputError(
            "the rescaling thermostat needs three degrees of freedom or more: use langevin"
        )
    for span in settings.spans:
        span.temperatures(len(systems))


def conditions_of(
    settings: Settings, span: Span, systems: Sequence[Atoms], temperatures: Sequence[float]
) -> Conditions:
    """Return the constants of a stage.

    Parameters
    ----------
    settings : Settings
        Settings of the run.
    span : Span
        The stage.
    systems : sequence of Atoms
        The systems.
    temperatures : sequence of float
        Current temperature of each system in K.
    """
    is_thermal = span.ensemble != "nve"
    is_langevin = is_thermal and settings.thermostat == "langevin"
    friction = settings.friction / (1000 * units.fs) if is_langevin else 0.0
    rescaling = None
    if is_thermal and settings.thermostat == "rescaling":
        rescaling = Rescaling(settings.thermostat_time * units.fs)
    return Conditions(
        integration=Integration(settings.timestep * units.fs, settings.seed, friction),
        temperature=_schedule(settings, span, temperatures),
        stream=np.arange(len(systems), dtype=np.int32),
        lost=np.array([lost_freedom(atoms) for atoms in systems], dtype=np.int32),
        rescaling=rescaling,
        barostat=_barostat(settings, span.pressure) if span.ensemble == "npt" else None,
    )


def minimizing(n_systems: int, max_force: float) -> Conditions:
    """Return the constants of a minimization until no force exceeds a limit, eV/Å."""
    zeros = np.zeros(n_systems, dtype=np.int32)
    return Conditions(
        integration=Integration(0.0),
        temperature=np.zeros((n_systems, 2)),
        stream=zeros,
        lost=zeros,
        descent=Descent(max_force),
    )


def _schedule(settings: Settings, span: Span, temperatures: Sequence[float]) -> FloatArray:
    """Return temperature at step 0 and increment per step of each system, eV."""
    final = units.kB * np.array(temperatures, dtype=np.float64)
    slope = np.zeros_like(final)
    if settings.heat_from is not None and span.start == 0:
        slope = (final - units.kB * settings.heat_from) / span.stop
        final = np.full_like(final, units.kB * settings.heat_from)
    return np.stack([final, slope], axis=1)


def _barostat(settings: Settings, pressure: float) -> Barostat:
    return Barostat(
        pressure=pressure * units.bar,
        compressibility=settings.compressibility / units.bar,
        time=settings.barostat_time * units.fs,
        every=PRESS_EVERY,
        isotropic=settings.barostat == "isotropic",
    )


def lost_freedom(atoms: Atoms) -> int:
    """Return the number of degrees of freedom that conserved momenta take from a system.

    There are none if atoms are fixed. Without a cell, a linear molecule of three atoms or more
    loses as many as any other molecule, because it bends; without angular momentum about its axis,
    it bends in one plane.

    The thermostat that rescales velocities removes these momenta in every step. Langevin dynamics
    gives each degree of freedom its share, and nve conserves the momenta to rounding: the sum of
    forces is about 1e-7 of their norm, so ten million steps change the momentum by less than 1e-3
    of its thermal value.
    """
    if fixed_atoms(atoms).any():
        return 0
    return 3 if atoms.pbc.any() else 6
