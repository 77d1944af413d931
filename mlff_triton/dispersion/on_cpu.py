"""Dispersion on the CPU in float64, by s-dftd3, the reference implementation of D3."""

from __future__ import annotations

import numpy as np
from dftd3.interface import DispersionModel, RationalDampingParam

from mlff_triton._common.text import first_line
from mlff_triton.dispersion.contribution import CUTOFF, WIDTH, Contribution, FloatArray
from mlff_triton.dispersion.damping import Damping
from mlff_triton.engine.batch import Batch
from mlff_triton.errors import InputError
from mlff_triton.neighbors.box import BoolArray, Box
from mlff_triton.units import BOHR

MARGIN = 1.0  # Bohr between atoms and the ends of a cell in its open directions


def compute(batch: Batch, damping: Damping, *, of_atoms: bool) -> Contribution:
    """Compute the dispersion of each system of a batch.

    Parameters
    ----------
    batch : Batch
        The systems.
    damping : Damping
        Parameters of the functional.
    of_atoms : bool
        If True, add the energy of each atom. This takes twice as long, and the memory of a matrix
        of all pairs of atoms.

    Raises
    ------
    InputError
        If s-dftd3 refuses a system.
    """
    parameters = RationalDampingParam(
        s6=damping.s6, s8=damping.s8, s9=0.0, a1=damping.a1, a2=damping.a2
    )
    energies, gradients, virials, atom_energies = [], [], [], []
    for system in batch.systems():
        try:
            frame = _frame(system.boxes[0])
            model = _model(system, frame)
            found = model.get_dispersion(parameters, grad=True)
        except RuntimeError as error:
            raise InputError(f"dispersion by dftd3 failed: {first_line(error)}") from error
        energies.append(float(found["energy"]))
        gradients.append(found["gradient"] @ frame)
        virials.append(frame.T @ found["virial"] @ frame)
        if of_atoms:
            pairs = model.get_pairwise_dispersion(parameters)["additive pairwise energy"]
            atom_energies.append(pairs.sum(axis=1))
    return Contribution.of_atomic_units(
        np.array(energies),
        np.concatenate(gradients),
        np.stack(virials),
        np.concatenate(atom_energies) if of_atoms else None,
    )


def _frame(box: Box) -> FloatArray:
    """Return the axes, orthonormal rows, along which s-dftd3 is given a system.

    Open directions of layers and chains are those of the Cartesian axes of the same index. In other
    orientations, s-dftd3 counts too few images of layers: its ``get_lattice_points`` takes
    Cartesian components for lattice vectors.
    """
    axes = np.eye(3)
    if box.pbc.any() and not box.pbc.all():
        axes[~box.pbc] = box.cell[~box.pbc]  # perpendicular to the other vectors
        axes[box.pbc] = np.linalg.svd(axes[~box.pbc])[2][(~box.pbc).sum() :]
    return axes


def _model(system: Batch, frame: FloatArray) -> DispersionModel:
    """Return the D3 model of one system, along the axes of a frame."""
    box, positions = system.boxes[0], system.positions / BOHR
    if box.pbc.any():
        cell, positions = _enclosing(box.cell @ frame.T / BOHR, box.pbc, positions @ frame.T)
        model = DispersionModel(system.numbers, positions, cell, box.pbc)
    else:
        model = DispersionModel(system.numbers, positions)
    model.set_realspace_cutoff(disp2=CUTOFF, disp3=CUTOFF, cn=CUTOFF, width2=WIDTH)
    return model


def _enclosing(
    cell: FloatArray, pbc: BoolArray, positions: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return a cell that holds all atoms in its open directions, and positions inside of it.

    s-dftd3 also wraps atoms into the cell in open directions, which would tear a slab apart.
    """
    cell, positions = cell.copy(), positions.copy()
    for row in np.flatnonzero(~pbc):
        axis = cell[row] / np.linalg.norm(cell[row])  # perpendicular to the other vectors
        heights = positions @ axis
        positions += (MARGIN - heights.min()) * axis
        cell[row] = (np.ptp(heights) + 2 * MARGIN) * axis
    return cell, positions
