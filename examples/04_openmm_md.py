"""A box of water at constant pressure through OpenMM: density, trajectory and a plot.

Usage: ``python 04_openmm_md.py``, or on a GPU ``python 04_openmm_md.py --edge 2.5 --steps 40000``

The script writes ``water.dcd``, ``water.pdb`` and ``water.png`` into ``--out``. It needs
``pip install 'mlff-triton[openmm]'``. The default box is small and the run short, so a laptop
finishes in a minute. A meaningful density needs a longer run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import openmm
from openmm import app, unit

from mlff_triton import create_openmm_force
from mlff_triton.calculators import create_openmm_bonds

SEED = 1  # with 0, OpenMM draws another seed in each run


def water_box(edge: float) -> app.Modeller:
    """Return a cube of water with edges of ``edge`` nm."""
    modeller = app.Modeller(app.Topology(), [] * unit.nanometer)
    modeller.addSolvent(app.ForceField("amber14/tip3p.xml"), boxSize=openmm.Vec3(edge, edge, edge))
    return modeller


def machine_learning_system(topology: app.Topology, model: str) -> openmm.System:
    """Return a System whose only force is the model."""
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors(*topology.getPeriodicBoxVectors())
    for atom in topology.atoms():
        system.addParticle(atom.element.mass)
    system.addForce(create_openmm_force(topology, model, remove_references=True))

    # A barostat moves whole molecules. Bonds without energy tell it what they are.
    system.addForce(create_openmm_bonds(topology))
    return system


def main() -> None:
    """Minimize, simulate, and plot the density."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="default", help="shipped name or checkpoint")
    parser.add_argument("--edge", type=float, default=1.0, help="initial edge of the box, nm")
    parser.add_argument("--steps", type=int, default=160, help="number of steps of 0.5 fs")
    parser.add_argument("--every", type=int, default=20, help="steps between reports")
    parser.add_argument("--minimize", type=int, default=20, help="iterations of the minimization")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--pressure", type=float, default=1.0, help="bar")
    parser.add_argument(
        "--platform", help="OpenMM platform, such as CPU or CUDA (default: the fastest)"
    )
    parser.add_argument("--out", type=Path, default=Path(), help="folder to write into")
    args = parser.parse_args()

    water = water_box(args.edge)
    system = machine_learning_system(water.topology, args.model)
    barostat = openmm.MonteCarloBarostat(args.pressure, args.temperature, 10)
    barostat.setRandomNumberSeed(SEED)
    system.addForce(barostat)
    integrator = openmm.LangevinMiddleIntegrator(
        args.temperature * unit.kelvin, 1 / unit.picosecond, 0.5 * unit.femtosecond
    )
    integrator.setRandomNumberSeed(SEED)
    platform = openmm.Platform.getPlatformByName(args.platform) if args.platform else None
    simulation = app.Simulation(water.topology, system, integrator, platform)
    simulation.context.setPositions(water.positions)
    simulation.minimizeEnergy(maxIterations=args.minimize)
    simulation.context.setVelocitiesToTemperature(args.temperature, SEED)

    args.out.mkdir(parents=True, exist_ok=True)
    positions = simulation.context.getState(positions=True).getPositions()
    with (args.out / "water.pdb").open("w") as file:
        app.PDBFile.writeFile(water.topology, positions, file)
    simulation.reporters.append(app.DCDReporter(str(args.out / "water.dcd"), args.every))

    mass = sum((atom.element.mass for atom in water.topology.atoms()), 0 * unit.dalton)
    times, densities = [], []
    for _ in range(args.steps // args.every):
        simulation.step(args.every)
        state = simulation.context.getState(energy=True)
        times.append(state.getTime().value_in_unit(unit.picosecond))
        density = mass / state.getPeriodicBoxVolume()
        densities.append(density.value_in_unit(unit.gram / unit.item / unit.milliliter))
        energy = state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)
        print(f"{times[-1]:8.3f} ps  {energy:12.1f} kJ/mol  {densities[-1]:.4f} g/mL", flush=True)

    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(times, densities, marker=".")
    title = f"Water at {args.temperature:g} K and {args.pressure:g} bar"
    axes.set(xlabel="time (ps)", ylabel="density (g/mL)", title=title)
    figure.savefig(args.out / "water.png", dpi=150)


if __name__ == "__main__":
    main()
