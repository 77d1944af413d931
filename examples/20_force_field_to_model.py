"""Free energy between two descriptions of a peptide: Amber14 and the model.

Usage: ``python 20_force_field_to_model.py``, for a trial of seconds; for a result
``python 20_force_field_to_model.py --equilibrate 5000 --iterations 500``, and with ``--edge 2.4``

The parameter ``lambda_interpolate`` of openmm-ml moves alanine dipeptide from the force field to
the model, in vacuum or, with ``--edge``, in water. The difference of both results is what the model
corrects in a free energy of solvation of the force field. Hamiltonian replica exchange samples the
states between; pymbar estimates the free energy from all energies (MBAR). Thermodynamic integration
(TI) takes the derivatives. It needs ``pip install 'mlff-triton[openmm]' pymbar``.
"""

from __future__ import annotations

import argparse
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import openmm
from openmm import app, unit
from openmmml import MLPotential

logging.getLogger("pymbar").setLevel(logging.ERROR)  # it recommends JAX
import pymbar  # noqa: E402

STRUCTURE = Path(__file__).parent / "structures" / "alanine_dipeptide.pdb"
NAME = "lambda_interpolate"
STATES = np.linspace(0, 1, 11)
TEMPERATURE = 298.15 * unit.kelvin
KT = (unit.MOLAR_GAS_CONSTANT_R * TEMPERATURE).value_in_unit(unit.kilojoule_per_mole)
KCAL = 4.184  # kJ


def interpolated(edge: float, model: str) -> tuple[app.Modeller, openmm.System]:
    """Make the System, in a cube of water of an edge in nm, or in vacuum if it is 0."""
    pdb = app.PDBFile(str(STRUCTURE))
    peptide = [atom.index for atom in pdb.topology.atoms()]
    force_field = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
    modeller = app.Modeller(pdb.topology, pdb.positions)
    method = app.NoCutoff
    if edge:
        modeller.addSolvent(force_field, boxSize=openmm.Vec3(edge, edge, edge))
        method = app.PME
    classical = force_field.createSystem(
        modeller.topology, nonbondedMethod=method, nonbondedCutoff=0.9 * unit.nanometer
    )
    potential = MLPotential("mlff-triton", modelPath=model)
    system = potential.createMixedSystem(
        modeller.topology, classical, peptide, interpolate=True, remove_references=True
    )
    for force in system.getForces():
        if isinstance(force, openmm.CustomCVForce):
            force.addEnergyParameterDerivative(NAME)
    for atom in list(modeller.topology.atoms())[: len(peptide)]:
        if atom.element == app.element.hydrogen:  # heavier, on which averages do not depend
            system.setParticleMass(atom.index, 3.024)
    return modeller, system


def sample(simulation: app.Simulation, args: argparse.Namespace) -> np.ndarray:
    """Return energies in kT, [sample, state of the sample, state of the energy]."""
    states = [{NAME: float(value)} for value in STATES]
    sampler = app.ReplicaExchangeSampler(states, simulation, args.steps)
    samples: list[np.ndarray] = []

    def report(current: Any) -> None:
        energies = np.empty((len(states), len(states)))
        for replica, state in enumerate(current.replicaStateIndex):
            energies[state] = current.replicaStateEnergy[replica]._value
        samples.append(energies / KT)

    sampler.reporters.append(report)
    for replica in range(len(states)):
        sampler.simulateReplica(replica, args.equilibrate)
    sampler.simulate(args.iterations)
    return np.array(samples)


def estimates(energies: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return free energies and standard errors in kT, of samples that are not correlated.

    The energy is linear in the parameter: its derivative, which OpenMM reports as well, is the
    difference of the energies at both ends.
    """
    n, k, _ = energies.shape
    slopes = energies[:, :, -1] - energies[:, :, 0]
    kept = [
        list(pymbar.timeseries.subsample_correlated_data(x)) if np.std(x) else list(range(n))
        for x in slopes.T
    ]
    u = np.concatenate([energies[rows, i] for i, rows in enumerate(kept)])
    sizes = np.array([len(rows) for rows in kept])
    mbar = pymbar.MBAR(u.T, sizes, solver_protocol=({"method": "adaptive"},))
    found = mbar.compute_free_energy_differences()
    means = np.array([slopes[rows, i].mean() for i, rows in enumerate(kept)])
    errors = np.array([slopes[rows, i].std() for i, rows in enumerate(kept)]) / np.sqrt(sizes)
    weights = np.zeros(k)
    weights[:-1] += np.diff(STATES) / 2
    weights[1:] += np.diff(STATES) / 2
    return {
        "MBAR": (found["Delta_f"][0, -1], found["dDelta_f"][0, -1]),
        "TI": (weights @ means, np.linalg.norm(weights * errors)),
    }


def main() -> None:
    """Simulate all states, compare derivatives, and estimate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default", help="shipped name or checkpoint")
    parser.add_argument("--edge", type=float, default=0.0, help="edge of the water box, nm")
    parser.add_argument("--equilibrate", type=int, default=20, help="steps of 1 fs, of all states")
    parser.add_argument("--iterations", type=int, default=3, help="samples of each state")
    parser.add_argument("--steps", type=int, default=20, help="steps of 1 fs between samples")
    parser.add_argument("--seed", type=int, default=1, help="of random numbers; for repetitions")
    parser.add_argument("--platform", help="OpenMM platform, such as CPU or CUDA")
    args = parser.parse_args()
    modeller, system = interpolated(args.edge, args.model)
    integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, 1 / unit.picosecond, 0.001)
    integrator.setRandomNumberSeed(args.seed)
    random.seed(args.seed)  # OpenMM exchanges states by it
    platform = openmm.Platform.getPlatformByName(args.platform) if args.platform else None
    simulation = app.Simulation(modeller.topology, system, integrator, platform)
    simulation.context.setPositions(modeller.positions)
    simulation.minimizeEnergy(maxIterations=100)
    simulation.context.setVelocitiesToTemperature(TEMPERATURE, args.seed)

    energies = sample(simulation, args)
    state = simulation.context.getState(parameterDerivatives=True)
    slope = state.getEnergyParameterDerivatives()[NAME] / KCAL
    print(f"derivative of the last sample {slope:.2f} kcal/mol")
    for name, (value, error) in estimates(energies).items():
        print(f"{name:5} {value * KT / KCAL:9.2f} ± {error * KT / KCAL:.2f} kcal/mol")


if __name__ == "__main__":
    main()
