"""Replica exchange of ethanol at four temperatures, all replicas in one batch.

Usage: ``python 09_replicas.py [--steps 400] [--out replicas]``
"""

import argparse
import csv
from itertools import pairwise
from pathlib import Path

import ase.io
from ase.build import molecule

from mlff_triton import TensorNetCalculator
from mlff_triton.dynamics import Settings, Simulation, Stage, frames_by_temperature
from mlff_triton.dynamics.outputs import names

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=400, help="time steps of 0.5 fs")
parser.add_argument("--out", type=Path, default=Path("replicas"), help="directory of the results")
options = parser.parse_args()

temperatures = (300.0, 345.0, 395.0, 450.0)
settings = Settings(
    stages=(Stage("nvt", options.steps),),
    temperature=temperatures,
    friction=20.0,
    every=50,
    log_every=10,
    exchange_every=10,
)
replicas = [molecule("CH3CH2OH")] * len(temperatures)
simulation = Simulation.start(
    replicas, TensorNetCalculator(), settings, options.out, overwrite=True
)
simulation.run()

for name in names("log.csv", len(replicas)):
    with (options.out / name).open(newline="") as file:
        visited = [float(row["target_K"]) for row in csv.DictReader(file)]
    changes = sum(a != b for a, b in pairwise(visited))
    print(f"{name}: {changes} exchanges, last at {visited[-1]:.0f} K")

# Each file follows a replica. An ensemble of one temperature consists of frames of many replicas.
for pair, (attempts, exchanges) in zip(pairwise(temperatures), simulation.exchanges, strict=True):
    print(f"{pair[0]:.0f} and {pair[1]:.0f} K: {exchanges} of {attempts} exchanges accepted")
for temperature, visits in frames_by_temperature(options.out).items():
    images = [ase.io.read(visit.path, visit.number) for visit in visits]
    ase.io.write(options.out / f"{temperature:.0f}K.extxyz", images)
