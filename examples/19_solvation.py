"""Free energy of solvation of methanol in water, the molecule described by the model.

Usage: ``python 19_solvation.py``, for a trial of seconds; for a result
``python 19_solvation.py --edge 2.4 --equilibrate 10000 --iterations 1000``

For comparison, FreeSolv 0.52 (doi:10.1021/acs.jced.7b00104) has -3.49 ± 0.02 kcal/mol by GAFF,
inside the molecule as well, and -5.10 kcal/mol from experiment.

The interaction of methanol (GAFF) and TIP3P water is taken away in steps, first the charges and
then the Lennard-Jones energies, by Hamiltonian replica exchange. The model computes what is inside
the molecule, in water and in vacuum. pymbar estimates the free energy from energies in all states
(MBAR), in neighbors (BAR), and in neighbors of one direction alone. Thermodynamic integration (TI)
takes derivatives instead, so that it is a check. The script writes ``solvation.npz`` with all
energies into ``--out``. It needs ``pip install 'mlff-triton[openmm]' pymbar``.
"""

from __future__ import annotations

import argparse
import logging
import random
from pathlib import Path

import numpy as np
import openmm
from openmm import app, unit
from openmmml import MLPotential

from mlff_triton.calculators import decouple, energy_derivatives

logging.getLogger("pymbar").setLevel(logging.ERROR)  # it recommends JAX
import pymbar  # noqa: E402

STRUCTURES = Path(__file__).parent / "structures"
NAMES = ("lambda_electrostatics", "lambda_sterics")
STATES = [(x, 1.0) for x in (1.0, 0.75, 0.5, 0.25)]
STATES += [(0.0, x) for x in (1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1, 0.0)]
TEMPERATURE = 298.15 * unit.kelvin
KT = (unit.MOLAR_GAS_CONSTANT_R * TEMPERATURE).value_in_unit(unit.kilojoule_per_mole)
KCAL = 4.184  # kJ


class Sampler(app.ReplicaExchangeSampler):
    """Replica exchange that keeps derivatives of the energy, and energies in all states."""

    def __init__(self, simulation: app.Simulation, steps: int) -> None:
        states = [dict(zip(NAMES, values, strict=True)) for values in STATES]
        super().__init__(states, simulation, steps)
        self.samples: list[tuple[np.ndarray, np.ndarray]] = []
        self._slopes = np.zeros((len(states), 2))
        self.reporters.append(Sampler.report)

    def simulateReplica(self, index: int, steps: int | None = None) -> None:  # noqa: N802 - of OpenMM
        """Simulate, and compute derivatives where the replica has come to."""
        super().simulateReplica(index, steps)
        found = energy_derivatives(self.simulation.context)
        self._slopes[self.replicaStateIndex[index]] = [found[name] for name in NAMES]

    def report(self) -> None:
        """Keep energies, [state of the sample, state of the energy], and derivatives, in kT."""
        energies = np.empty((len(self.states), len(self.states)))
        for replica, state in enumerate(self.replicaStateIndex):
            energies[state] = self.replicaStateEnergy[replica]._value
        self.samples.append((energies / KT, self._slopes / KT))


def solvated(args: argparse.Namespace) -> tuple[app.Modeller, openmm.System]:
    """Solvate the molecule, give its interior to the model, and decouple it from the water."""
    pdb = app.PDBFile(str(args.molecule))
    molecule = [atom.index for atom in pdb.topology.atoms()]
    force_field = app.ForceField(str(args.force_field), "amber14/tip3p.xml")
    modeller = app.Modeller(pdb.topology, pdb.positions)
    modeller.addSolvent(force_field, boxSize=openmm.Vec3(args.edge, args.edge, args.edge))
    classical = force_field.createSystem(
        modeller.topology, nonbondedMethod=app.PME, nonbondedCutoff=0.9 * unit.nanometer
    )
    potential = MLPotential("mlff-triton", modelPath=args.model)
    system = potential.createMixedSystem(
        modeller.topology, decouple(classical, molecule), molecule, remove_references=True
    )
    for atom in list(modeller.topology.atoms())[: len(molecule)]:
        if atom.element == app.element.hydrogen:  # heavier, on which averages do not depend
            system.setParticleMass(atom.index, 3.024)
    barostat = openmm.MonteCarloBarostat(1.01325, TEMPERATURE, 50)  # bar
    barostat.setRandomNumberSeed(args.seed)
    system.addForce(barostat)
    return modeller, system


def estimates(energies: np.ndarray, slopes: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return free energies of taking the molecule out of water, and standard errors, in kT.

    Arguments are [sample, state of the sample, state of the energy] and [sample, state, parameter].
    Errors account for correlation in time, by the statistical inefficiency of the derivatives.
    """
    n, k, _ = energies.shape
    path = np.diff(np.array(STATES), axis=0)
    along = [slopes[:, i] @ path[min(i, k - 2)] for i in range(k)]
    kept = [
        pymbar.timeseries.subsample_correlated_data(x) if np.std(x) else range(n) for x in along
    ]
    u = [energies[list(rows), i] for i, rows in enumerate(kept)]
    mbar = pymbar.MBAR(
        np.concatenate(u).T,
        np.array([len(rows) for rows in u]),
        solver_protocol=({"method": "adaptive"},),
    )
    all_states = mbar.compute_free_energy_differences()
    found = {"MBAR": (all_states["Delta_f"][0, -1], all_states["dDelta_f"][0, -1])}
    down = [u[i][:, i + 1] - u[i][:, i] for i in range(k - 1)]
    up = [u[i + 1][:, i] - u[i + 1][:, i + 1] for i in range(k - 1)]
    steps = [pymbar.bar(*both) for both in zip(down, up, strict=True)]
    found["BAR"] = _sum([(x["Delta_f"], x["dDelta_f"]) for x in steps])
    for name, work, sign in (("forward", down, 1), ("backward", up, -1)):
        steps = [pymbar.exp(x) for x in work]
        found[name] = _sum([(sign * x["Delta_f"], x["dDelta_f"]) for x in steps])
    means = np.array([slopes[list(rows), i].mean(axis=0) for i, rows in enumerate(kept)])
    errors = np.array(
        [slopes[list(rows), i].std(axis=0) / len(rows) ** 0.5 for i, rows in enumerate(kept)]
    )
    found["TI"] = _integral(means, errors)
    return found


def _sum(steps: list[tuple[float, float]]) -> tuple[float, float]:
    values, errors = np.array(steps).T
    return values.sum(), np.linalg.norm(errors)


def _integral(means: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """Integrate derivatives [state, parameter] along the path by the trapezoidal rule."""
    path = np.diff(np.array(STATES), axis=0)
    weights = np.zeros_like(means)
    weights[:-1] += path / 2
    weights[1:] += path / 2
    return (weights * means).sum(), np.linalg.norm(weights * errors)


def main() -> None:
    """Equilibrate, exchange, and estimate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--molecule", type=Path, default=STRUCTURES / "methanol.pdb")
    parser.add_argument("--force-field", type=Path, default=STRUCTURES / "methanol.xml")
    parser.add_argument("--model", default="default", help="shipped name or checkpoint")
    parser.add_argument("--edge", type=float, default=1.9, help="edge of the box, nm, at least 1.9")
    parser.add_argument("--minimize", type=int, default=100, help="iterations of the minimization")
    parser.add_argument("--equilibrate", type=int, default=20, help="steps of 2 fs, of all states")
    parser.add_argument("--iterations", type=int, default=3, help="samples of each state")
    parser.add_argument("--steps", type=int, default=100, help="steps of 2 fs between samples")
    parser.add_argument("--seed", type=int, default=1, help="of random numbers; for repetitions")
    parser.add_argument("--platform", help="OpenMM platform, such as CPU or CUDA")
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()
    modeller, system = solvated(args)
    integrator = openmm.LangevinMiddleIntegrator(
        TEMPERATURE, 1 / unit.picosecond, 2 * unit.femtosecond
    )
    integrator.setRandomNumberSeed(args.seed)
    random.seed(args.seed)  # OpenMM exchanges states by it
    platform = openmm.Platform.getPlatformByName(args.platform) if args.platform else None
    simulation = app.Simulation(modeller.topology, system, integrator, platform)
    simulation.context.setPositions(modeller.positions)
    simulation.minimizeEnergy(maxIterations=args.minimize)
    simulation.context.setVelocitiesToTemperature(TEMPERATURE, args.seed)
    simulation.step(args.equilibrate)

    sampler = Sampler(simulation, args.steps)
    for replica in range(len(STATES)):
        sampler.simulateReplica(replica, args.equilibrate)
    for iteration in range(args.iterations):
        sampler.simulate(1)
        if 10 * (iteration + 1) // args.iterations > 10 * iteration // args.iterations:
            print(f"{iteration + 1} of {args.iterations} samples of each state", flush=True)
    energies, slopes = map(np.array, zip(*sampler.samples, strict=True))
    args.out.mkdir(parents=True, exist_ok=True)
    np.savez(args.out / "solvation.npz", energies=energies, derivatives=slopes, states=STATES)
    for name, (value, error) in estimates(energies, slopes).items():
        print(f"{name:8} {-value * KT / KCAL:7.2f} ± {error * KT / KCAL:.2f} kcal/mol")


if __name__ == "__main__":
    main()
