"""Molecules and crystals, and their dispersion by s-dftd3 itself."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, graphene, molecule
from ase.geometry import complete_cell

from mlff_triton.engine.batch import Batch
from mlff_triton.units import BOHR, HARTREE

MOLECULES = (
    *("H2O", "CH4", "NH3", "C2H2", "C2H4", "C2H6", "C6H6", "CH3CH2OH", "CH3COOH", "HCN"),
    *("CO2", "SO2", "PH3", "SiH4", "HCl", "CH3Cl", "C60", "LiF", "NaCl", "CCl4"),
)
CRYSTALS = {
    "Si": bulk("Si"),
    "Cu": bulk("Cu", cubic=True),
    "Mg": bulk("Mg") * (2, 1, 1),
    "NaCl": bulk("NaCl", "rocksalt", a=5.64, cubic=True),
    "TiN": bulk("TiN", "rocksalt", a=4.24) * (2, 2, 1),
}


class Expected(NamedTuple):
    """Energy in eV, forces in eV/Å, virial in eV and energies of atoms in eV."""

    energy: float
    forces: np.ndarray
    virial: np.ndarray
    atom_energies: np.ndarray


def shaken(atoms: Atoms) -> Atoms:
    """Return a copy with less symmetry, and with atoms outside of its cell."""
    atoms = atoms.copy()
    atoms.rattle(0.05, seed=1)
    atoms.positions += [31.0, -17.0, 2.0]
    return atoms


def structures() -> dict[str, Atoms]:
    """Return 20 molecules, five crystals, a layer, a slab and two chains."""
    layer = graphene(vacuum=0.0) * (2, 1, 1)
    open_ones = {"graphene": layer, "slab": fcc111("Cu", (2, 2, 5))}
    for name, direction in (("chain", 0), ("other chain", 1)):
        open_ones[name] = chain = molecule("C2H6", pbc=np.arange(3) == direction)
        chain.cell[direction] = [6.0, 1.0, 0.5]
    crystals = {f"{name} crystal": atoms for name, atoms in CRYSTALS.items()}
    named = {name: molecule(name) for name in MOLECULES} | crystals | open_ones
    return {name: shaken(atoms) for name, atoms in named.items()}


def batch_of(*systems: Atoms) -> Batch:
    """Return a batch of structures."""
    return Batch.concatenate(
        [Batch.of(a.numbers, a.positions, a.cell.array, a.pbc) for a in systems]
    )


def expected_of(
    atoms: Atoms, functional: str, cutoff: float = 40.0, width: float = 5.0
) -> Expected:
    """Compute with s-dftd3 and its own parameters, or skip the test where it is missing."""
    reason = "s-dftd3 is missing: pip install 'mlff-triton[dispersion]'"
    dftd3 = pytest.importorskip("dftd3.interface", reason=reason)
    periodic = ()
    if atoms.pbc.any():  # with so much vacuum in open directions that they may be periodic
        vectors = complete_cell(np.where(atoms.pbc[:, None], atoms.cell.array, 0.0))
        vectors[~atoms.pbc] *= 200.0
        periodic = (vectors / BOHR, np.full(3, fill_value=True))
    model = dftd3.DispersionModel(atoms.numbers, atoms.positions / BOHR, *periodic)
    model.set_realspace_cutoff(disp2=cutoff, disp3=cutoff, cn=40.0, width2=width)
    parameters = dftd3.RationalDampingParam(method=functional)
    found = model.get_dispersion(parameters, grad=True)
    pairs = model.get_pairwise_dispersion(parameters)["additive pairwise energy"]
    return Expected(
        HARTREE * float(found["energy"]),
        -HARTREE / BOHR * found["gradient"],
        HARTREE * found["virial"],
        HARTREE * pairs.sum(axis=1),
    )
