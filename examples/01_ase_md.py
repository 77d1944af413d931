"""Heating of ethanol from rest to 300 K with the shipped model, through ASE.

Usage: ``python 01_ase_md.py``
"""

import numpy as np
from ase.build import molecule
from ase.md.langevin import Langevin
from ase.units import fs

from mlff_triton import TensorNetCalculator

atoms = molecule("CH3CH2OH")
atoms.calc = TensorNetCalculator()
dynamics = Langevin(
    atoms,
    timestep=0.5 * fs,
    temperature_K=300,
    friction=0.01 / fs,
    fixcm=False,
    rng=np.random.default_rng(0),
)

for _ in range(10):
    dynamics.run(20)
    energy, temperature = atoms.get_potential_energy(), atoms.get_temperature()
    print(f"{dynamics.get_time() / fs:5.0f} fs  {energy:.4f} eV  {temperature:.0f} K")
