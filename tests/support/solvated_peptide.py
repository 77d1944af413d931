"""A peptide in a box of classical water, for mixed systems in OpenMM."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import openmm
from openmm import app, unit

import mlff_triton

PEPTIDE = (
    Path(mlff_triton.__file__).parents[1] / "examples" / "structures" / "alanine_dipeptide.pdb"
)


@functools.cache
def solvated() -> tuple[app.Topology, np.ndarray]:
    """Return the peptide, atoms 0 to 21, in a box of water, and positions in nm."""
    pdb = app.PDBFile(str(PEPTIDE))
    modeller = app.Modeller(pdb.topology, pdb.positions)
    modeller.addSolvent(force_field(), boxSize=openmm.Vec3(1.9, 1.9, 1.9))
    return modeller.topology, np.array(modeller.positions.value_in_unit(unit.nanometer))


@functools.cache
def force_field() -> app.ForceField:
    return app.ForceField("amber14-all.xml", "amber14/tip3p.xml")
