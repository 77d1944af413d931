"""Molecules of the machine-learning part: bonds that OpenMM sees, and positions made whole.

OpenMM finds molecules by bonds of forces. It wraps and scales them as a whole; an atom without
known bonds is a molecule of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from mlff_triton.calculators.openmm.atoms import Selection
from mlff_triton.engine.batch import IntArray
from mlff_triton.errors import InputError

if TYPE_CHECKING:
    import openmm
    from openmm.app import Topology

BONDS_NAME = "bonds of mlff_triton"
ROWS_AT_ONCE = 256


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
    """Function that moves bonded atoms next to each other, however they were wrapped.

    Each atom takes the image nearest to the atom before it on the path from the middle of its
    molecule.

    Parameters
    ----------
    bonds : int64 [B, 2]
        Pairs of atoms.
    n_atoms : int
        Number of atoms.
    gathers : bool
        If True, the middle of each molecule takes the image nearest to the middle of the largest
        one. Otherwise, it stays.

    Attributes
    ----------
    interact : bool
        True if there are several molecules, whose images matter.
    """

    def __init__(self, bonds: IntArray, n_atoms: int, gathers: bool) -> None:
        forest = BondForest(bonds, n_atoms)
        parents, middles = forest.parents, forest.roots
        parents[middles] = middles[np.bincount(forest.labels).argmax()] if gathers else middles
        self._labels = forest.labels
        self.interact = gathers and len(middles) > 1
        # Shifts add up along the way to a root: after k rounds, those of the next 2^k atoms
        self._ancestors = _ancestors(parents)
        self._on_device: list[torch.Tensor] = []

    def whole(
        self, positions: NDArray[np.float64], box: NDArray[np.float64], reach: float
    ) -> NDArray[np.float64]:
        """Return whole positions [N, 3], given the box [3, 3] and the cutoff in the same unit.

        Raises
        ------
        InputError
            As for `check_images`.
        """
        apart = positions - positions[self._ancestors[0]]
        shifts = np.rint(apart @ np.linalg.inv(box))
        if shifts.any():
            positions = positions - _summed(shifts, self._ancestors) @ box
        self.check_images(positions, box, reach)
        return positions

    def whole_on_device(self, positions: torch.Tensor, box: torch.Tensor) -> torch.Tensor:
        """Return whole positions as tensors, on their device, without waiting and unchecked."""
        if not self._on_device or self._on_device[0].device != positions.device:
            self._on_device = [torch.from_numpy(k).to(positions.device) for k in self._ancestors]
        box = box.to(positions)
        apart = positions - positions[self._on_device[0]]
        shifts = torch.round(apart @ torch.linalg.inv_ex(box).inverse)
        whole: torch.Tensor = positions - _summed(shifts, self._on_device) @ box
        return whole

    def check_images(
        self, whole: NDArray[np.float64], box: NDArray[np.float64], reach: float
    ) -> None:
        """Check that molecules interact only with the nearest images of each other.

        Parameters
        ----------
        whole : float64 [N, 3]
            Positions of whole molecules.
        box : float64 [3, 3]
            Box vectors as rows.
        reach : float
            Cutoff of the model.

        Raises
        ------
        InputError
            If two atoms of different molecules are within the cutoff, but not in these images.
        """
        if not self.interact:
            return
        inverse = np.linalg.inv(box)
        # Only atoms this close to the ends of the part can be near its images
        margin = 1 - reach * np.linalg.norm(inverse, axis=0)
        points = whole @ inverse
        low, high = points.min(axis=0), points.max(axis=0)
        if (high - low < np.maximum(margin, 0.5)).all():  # half a cell: all images are nearest
            return
        at_end = ((points >= low + margin) | (points <= high - margin)) & (high - low >= margin)
        atoms = np.flatnonzero(at_end.any(axis=1))
        for some in np.array_split(atoms, len(atoms) // ROWS_AT_ONCE + 1):
            apart = points[some, None] - points[atoms]
            shifts = np.rint(apart)
            is_other = shifts.any(axis=2) & (self._labels[some, None] != self._labels[atoms])
            is_near = is_other & (np.linalg.norm((apart - shifts) @ box, axis=2) < reach)
            if is_near.any():
                row, column = np.argwhere(is_near)[0]
                raise InputError(
                    f"atoms {some[row]} and {atoms[column]} of two molecules interact across a "
                    "face of the box, but a model with periodic=False computes other images of "
                    "them: use periodic=True, a larger box, or a topology with all bonds"
                )


class BondForest:
    """Trees of bonded atoms, each with its root in the middle of a molecule.

    Attributes
    ----------
    labels : int [N]
        Molecule of each atom.
    roots : int64 [M]
        The middle of each molecule: of its longest path, if it has no rings.
    parents : int64 [N]
        Atom before each atom on the path from the root, or the root itself.
    """

    def __init__(self, bonds: IntArray, n_atoms: int) -> None:
        ends = np.asarray(bonds, dtype=np.int64).reshape(-1, 2).T
        graph = coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(n_atoms, n_atoms))
        _, self.labels = connected_components(graph, directed=False)
        roots = np.unique(self.labels, return_index=True)[1]
        for _ in range(2):  # the atom farthest from one that is farthest from any
            self.parents = _parents(ends, n_atoms, roots)
            order = np.lexsort((depths := _depths(self.parents), self.labels))
            roots = order[np.flatnonzero(np.diff(self.labels[order], append=-1))]
        halves = depths[roots] - depths[roots] // 2
        while len(moving := np.flatnonzero(depths[roots] > halves)):
            roots[moving] = self.parents[roots[moving]]
        self.roots = roots
        self.parents = _parents(ends, n_atoms, roots)


def _parents(ends: IntArray, n_atoms: int, roots: IntArray) -> IntArray:
    """Return the atom before each atom on the shortest path from a root; a root's own is itself."""
    from_one = np.stack([np.full(len(roots), n_atoms), roots])  # a node from which all are reached
    first, second = np.concatenate([ends, from_one], axis=1)
    shape = (n_atoms + 1, n_atoms + 1)
    graph = coo_array((np.ones(len(first)), (first, second)), shape=shape)
    _, before = breadth_first_order(graph.tocsr(), n_atoms, directed=False)
    parents: IntArray = before[:n_atoms].astype(np.int64)
    parents[roots] = roots
    return parents


def _depths(parents: IntArray) -> IntArray:
    """Return the number of bonds between each atom and its root."""
    is_below = (parents != np.arange(len(parents))).astype(np.int64)
    depths: IntArray = _summed(is_below, _ancestors(parents))
    return depths


def _ancestors(parents: IntArray) -> list[IntArray]:
    """Return the atoms 1, 2, 4, ... steps above each atom, until all are roots."""
    ancestors = [parents]
    while not np.array_equal(farther := ancestors[-1][ancestors[-1]], ancestors[-1]):
        ancestors.append(farther)
    return ancestors


def _summed(shifts: Any, ancestors: list[Any]) -> Any:
    """Return the sum of the shifts of each atom and of all atoms on its path to the root."""
    for ancestor in ancestors:
        shifts = shifts + shifts[ancestor]
    return shifts
