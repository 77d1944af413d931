"""Molecules of the machine-learning part: bonds that OpenMM sees, and positions made whole.

OpenMM finds molecules by bonds of forces. It wraps and scales them as a whole, but an atom of which
it knows no bond is a molecule of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order

from mlff_triton.calculators.openmm.atoms import Selection
from mlff_triton.engine.batch import IntArray

if TYPE_CHECKING:
    import openmm
    from openmm.app import Topology

BONDS_NAME = "bonds of mlff_triton"


def create_openmm_bonds(
    topology: Topology, particles: Iterable[int] | None = None
) -> openmm.HarmonicBondForce:
    """Make bonds without energy, by which OpenMM recognizes the molecules of a model's atoms.

    Barostats scale molecules as a whole, and reporters wrap them as a whole. `create_openmm_force`
    returns a force without bonds, so add these to the same System. Systems of openmm-ml have them.

    Parameters
    ----------
    topology : openmm.app.Topology
        All atoms of the System, and their bonds.
    particles : int [M], optional
        Indices of the atoms that the model computes; all by default.

    Returns
    -------
    openmm.HarmonicBondForce
        Spring constants are 0. Argument for ``System.addForce``.

    Raises
    ------
    InputError
        If the particles are not atoms of the topology, or one of them has no element.

    Examples
    --------
    >>> from openmm import app
    >>> topology = app.Topology()
    >>> residue = topology.addResidue("HOH", topology.addChain())
    >>> o, h = (topology.addAtom(s, app.Element.getBySymbol(s), residue) for s in "OH")
    >>> topology.addBond(o, h)
    >>> create_openmm_bonds(topology).getNumBonds()
    1
    """
    return bonds_of_selection(Selection.of_topology(topology, particles))


def bonds_of_selection(selection: Selection) -> openmm.HarmonicBondForce:
    """Make the force that `create_openmm_bonds` returns."""
    import openmm

    force = openmm.HarmonicBondForce()
    force.setName(BONDS_NAME)
    indices = selection.particles
    for pair in selection.bonds if indices is None else indices[selection.bonds]:
        force.addBond(*pair.tolist(), 0.1, 0.0)
    return force


class WholeMolecules:
    """Positions in which bonded atoms are next to each other, however they were wrapped.

    Each atom takes the image that is nearest to the atom it is bonded to.

    Parameters
    ----------
    bonds : int64 [B, 2]
        Pairs of atoms.
    n_atoms : int
        Number of atoms.
    gathers : bool
        If True, the first atom of each molecule takes the image nearest to the first atom of all.
        Otherwise, it stays.
    """

    def __init__(self, bonds: IntArray, n_atoms: int, gathers: bool) -> None:
        ends = np.sort(np.asarray(bonds, dtype=np.int64).reshape(-1, 2)).T
        graph = coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(n_atoms, n_atoms))
        parents = np.full(n_atoms, -1, dtype=np.int64)
        is_found = np.zeros(n_atoms, dtype=bool)
        graph = graph.tocsr()
        for root in range(n_atoms):
            if not is_found[root]:
                order, before = breadth_first_order(graph, root, directed=False)
                parents[order], is_found[order] = before[order], True
                parents[root] = 0 if gathers else root
        # Shifts add up along the way to a first atom: after k rounds, those of the next 2^k atoms
        self._ancestors = [parents]
        while (farther := self._ancestors[-1][self._ancestors[-1]]).tobytes() != (
            self._ancestors[-1].tobytes()
        ):
            self._ancestors.append(farther)
        self._on_device: list[torch.Tensor] = []

    def whole(self, positions: NDArray[np.float64], box: NDArray[np.float64]) -> Any:
        """Return whole positions [N, 3], given the box [3, 3] in the same unit."""
        apart = positions - positions[self._ancestors[0]]
        shifts = np.rint(apart @ np.linalg.inv(box))
        if not shifts.any():
            return positions
        return positions - _summed(shifts, self._ancestors) @ box

    def whole_on_device(self, positions: torch.Tensor, box: torch.Tensor) -> torch.Tensor:
        """Return the same of tensors, on their device and without waiting for it."""
        if not self._on_device or self._on_device[0].device != positions.device:
            self._on_device = [torch.from_numpy(k).to(positions.device) for k in self._ancestors]
        box = box.to(positions)
        apart = positions - positions[self._on_device[0]]
        shifts = torch.round(apart @ torch.linalg.inv_ex(box).inverse)
        whole: torch.Tensor = positions - _summed(shifts, self._on_device) @ box
        return whole


def _summed(shifts: Any, ancestors: list[Any]) -> Any:
    """Return the sum of the shifts of each atom and of all atoms on its way to the first."""
    for ancestor in ancestors:
        shifts = shifts + shifts[ancestor]
    return shifts
