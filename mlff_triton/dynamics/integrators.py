"""ASE's integrators, extended by their conserved energies and by the states that restarts need.

The state of an integrator is everything besides the positions and momenta of the atoms. The random
stream belongs to the run.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from ase import Atoms, units
from ase.md.langevinbaoab import LangevinBAOAB
from ase.md.nose_hoover_chain import IsotropicMTKNPT
from ase.md.verlet import VelocityVerlet

from mlff_triton.dynamics.settings import Settings
from mlff_triton.errors import InputError

THERMOSTAT_TIME = 100 * units.fs
BAROSTAT_TIME = 1000 * units.fs

State = dict[str, Any]


class Integrator(Protocol):
    """Interface of an integrator whose state can be saved and restored exactly."""

    def step(self) -> object:
        """Advance positions and momenta by one time step, and compute the forces at its end."""

    def conserved_energy(self) -> float:
        """Return the energy in eV that the exact equations of motion conserve."""

    def get_state(self) -> State:
        """Return the state, without the atoms, as numbers and lists."""

    def set_state(self, state: State) -> None:
        """Continue from a state returned by `get_state`."""


class NVE(VelocityVerlet):
    """Velocity Verlet integrator, for constant energy."""

    def conserved_energy(self) -> float:
        """Return the sum of potential and kinetic energy, eV."""
        return float(self.atoms.get_total_energy())

    def get_state(self) -> State:
        """Return an empty state: the atoms suffice."""
        return {}

    def set_state(self, state: State) -> None:
        """Do nothing."""


class NVT(LangevinBAOAB):
    """Langevin dynamics with BAOAB splitting, for constant temperature.

    B. Leimkuhler, C. Matthews, J. Chem. Phys. 138, 174102 (2013),
    https://doi.org/10.1063/1.4802990. The thermostat acts on all 3N degrees of freedom, including
    those of the center of mass.
    """

    heat = 0.0

    def _BAOAB_OU(self, drag_gamma_mod: float = 0.0) -> None:  # noqa: N802
        """Exchange heat with the bath, and add it up."""
        before = self.atoms.get_kinetic_energy()
        super()._BAOAB_OU(drag_gamma_mod)
        self.heat += float(self.atoms.get_kinetic_energy() - before)

    def conserved_energy(self) -> float:
        """Return the total energy minus the heat received from the bath, eV."""
        return float(self.atoms.get_total_energy()) - self.heat

    def get_state(self) -> State:
        """Return the heat received from the bath."""
        return {"heat": self.heat}

    def set_state(self, state: State) -> None:
        """Restore the heat received from the bath."""
        self.heat = state["heat"]


class NPT(IsotropicMTKNPT):
    """Nosé-Hoover chains with an isotropic barostat, for constant temperature and pressure.

    G. J. Martyna, D. J. Tobias, M. L. Klein, J. Chem. Phys. 101, 4177 (1994),
    https://doi.org/10.1063/1.467468. The cell keeps its shape.
    """

    def conserved_energy(self) -> float:
        """Return the energy of the extended system, eV."""
        return float(self.get_conserved_energy())

    def get_state(self) -> State:
        """Return the reference cell, the strain, and the chains with their momenta."""
        return {
            "cell0": self._cell0.tolist(),
            "volume0": float(self._volume0),
            "eps": float(self._eps),
            "p_eps": float(self._p_eps),
            "eta": self._thermostat._eta.tolist(),
            "p_eta": self._thermostat._p_eta.tolist(),
            "xi": self._barostat._xi.tolist(),
            "p_xi": self._barostat._p_xi.tolist(),
        }

    def set_state(self, state: State) -> None:
        """Restore the cell, the strain and the chains."""
        self._cell0 = np.array(state["cell0"])
        self._volume0 = state["volume0"]
        self._eps = state["eps"]
        self._p_eps = state["p_eps"]
        self._thermostat._eta = np.array(state["eta"])
        self._thermostat._p_eta = np.array(state["p_eta"])
        self._barostat._xi = np.array(state["xi"])
        self._barostat._p_xi = np.array(state["p_xi"])


def make_integrator(
    ensemble: str, atoms: Atoms, settings: Settings, rng: np.random.Generator
) -> Integrator:
    """Make the integrator of an ensemble, in its initial state.

    Parameters
    ----------
    ensemble : {"nve", "nvt", "npt"}
        Ensemble: constant energy, temperature, or temperature and pressure.
    atoms : Atoms
        The system, with calculator and momenta.
    settings : Settings
        Time step and conditions.
    rng : numpy.random.Generator
        Random stream of the Langevin thermostat.

    Returns
    -------
    Integrator
    """
    timestep = settings.timestep * units.fs
    if ensemble == "nve":
        return NVE(atoms, timestep)
    if ensemble == "nvt":
        return NVT(
            atoms,
            timestep,
            temperature_K=settings.temperature,
            T_tau=1000 * units.fs / settings.friction,
            hydrostatic=True,  # a scalar drag instead of a 3x3 matrix exponential
            rng=rng,
        )
    return NPT(
        atoms,
        timestep,
        temperature_K=settings.temperature,
        pressure_au=settings.pressure * units.bar,
        tdamp=THERMOSTAT_TIME,
        pdamp=BAROSTAT_TIME,
    )


def check_ensembles(atoms: Atoms, settings: Settings) -> None:
    """Raise an `InputError` if a stage controls the pressure of a system that has none."""
    if any(stage.ensemble == "npt" for stage in settings.stages) and not atoms.pbc.all():
        raise InputError("npt needs a cell that is periodic in three directions: use nvt or nve")
