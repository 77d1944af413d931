"""A peptide described by the model in classical water: alanine dipeptide, TIP3P and Amber14.

Usage: ``python 05_openmm_mixed.py``, or on a GPU ``python 05_openmm_mixed.py --steps 100000``

The model computes the energy within the peptide. Amber computes everything else, including the
interaction of peptide and water. OpenMM runs the simulation. The script writes ``mixed.dcd``,
``mixed.pdb`` and ``mixed.png``, a plot of the two torsions over time, into ``--out``. It needs
``pip install 'mlff-triton[openmm]'``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import openmm
from openmm import app, unit
from openmmml import MLPotential

STRUCTURE = Path(__file__).parent / "structures" / "alanine_dipeptide.pdb"
TORSIONS = {"phi": (4, 6, 8, 14), "psi": (6, 8, 14, 16)}  # C, N, CA, C and N, CA, C, N
ML_GROUP = 1
SEED = 1  # with 0, OpenMM draws another seed in each run


def dihedral(points: np.ndarray) -> float:
    """Return the torsion of four points [4, 3] about the middle bond, degrees."""
    first, axis, last = np.diff(points, axis=0)
    up, down = np.cross(first, axis), np.cross(axis, last)
    return np.degrees(np.arctan2(np.dot(first, down) * np.linalg.norm(axis), np.dot(up, down)))


def mixed_system(edge: float, model: str) -> tuple[app.Modeller, openmm.System]:
    """Solvate the peptide in a cube of ``edge`` nm and give it to the model."""
    pdb = app.PDBFile(str(STRUCTURE))
    peptide = [atom.index for atom in pdb.topology.atoms()]
    force_field = app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
    modeller = app.Modeller(pdb.topology, pdb.positions)
    modeller.addSolvent(force_field, boxSize=openmm.Vec3(edge, edge, edge))
    classical = force_field.createSystem(
        modeller.topology,
        nonbondedMethod=app.PME,
        nonbondedCutoff=0.9 * unit.nanometer,
        constraints=app.HBonds,  # createMixedSystem removes those of the peptide
    )
    potential = MLPotential("mlff-triton", modelPath=model)
    system = potential.createMixedSystem(
        modeller.topology, classical, peptide, forceGroup=ML_GROUP, remove_references=True
    )
    return modeller, system


def main() -> None:
    """Minimize, simulate, and plot the torsions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default", help="shipped name or checkpoint")
    parser.add_argument("--edge", type=float, default=2.0, help="edge of the box, nm, at least 1.9")
    parser.add_argument("--steps", type=int, default=400, help="number of steps of 0.5 fs")
    parser.add_argument("--every", type=int, default=20, help="steps between reports")
    parser.add_argument("--minimize", type=int, default=100, help="iterations of the minimization")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument(
        "--platform", help="OpenMM platform, such as CPU or CUDA (default: the fastest)"
    )
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()

    modeller, system = mixed_system(args.edge, args.model)
    integrator = openmm.LangevinMiddleIntegrator(
        args.temperature * unit.kelvin, 1 / unit.picosecond, 0.5 * unit.femtosecond
    )
    integrator.setRandomNumberSeed(SEED)
    platform = openmm.Platform.getPlatformByName(args.platform) if args.platform else None
    simulation = app.Simulation(modeller.topology, system, integrator, platform)
    simulation.context.setPositions(modeller.positions)
    simulation.minimizeEnergy(maxIterations=args.minimize)
    simulation.context.setVelocitiesToTemperature(args.temperature, SEED)

    args.out.mkdir(parents=True, exist_ok=True)
    positions = simulation.context.getState(positions=True).getPositions()
    with (args.out / "mixed.pdb").open("w") as file:
        app.PDBFile.writeFile(modeller.topology, positions, file)
    simulation.reporters.append(app.DCDReporter(str(args.out / "mixed.dcd"), args.every))

    times, angles = [], []
    for _ in range(args.steps // args.every):
        simulation.step(args.every)
        state = simulation.context.getState(positions=True)
        points = state.getPositions(asNumpy=True).value_in_unit(unit.nanometer)
        times.append(state.getTime().value_in_unit(unit.picosecond))
        angles.append([dihedral(points[list(four)]) for four in TORSIONS.values()])
        state = simulation.context.getState(energy=True, groups={ML_GROUP})
        energy = state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
        phi, psi = angles[-1]
        print(
            f"{times[-1]:8.3f} ps  peptide {energy:9.1f} kJ/mol  phi {phi:4.0f}  psi {psi:4.0f}",
            flush=True,
        )

    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(times, angles, ".", label=list(TORSIONS))
    axes.set(xlabel="time (ps)", ylabel="torsion (degrees)", ylim=(-180, 180))
    axes.legend()
    figure.savefig(args.out / "mixed.png", dpi=150)


if __name__ == "__main__":
    main()
