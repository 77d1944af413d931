"""Checks of the values of charges, positions and cells, which wait for a GPU."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_integers, check_shape
from mlff_triton.kernels.electrostatics.parameters import check_cells
from mlff_triton.kernels.electrostatics.types import PMEParameters

NEUTRAL = 1e-3  # elementary charges, above the rounding errors of float32 charges
MANY_NEIGHBORS = 100  # per atom; below, their number depends on the structure
FEWEST_EDGES = 0.7  # of the expected ones
ONE_WAY = 0.2  # of the edges; rounding at the cutoff leaves fewer without their reverse
COARSEST = 1.2  # product of splitting and spacing, at which errors exceed a tenth


def check_values(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    system: Tensor,
    n_edges: int,
    parameters: PMEParameters,
    *,
    warn_charged: bool = False,
) -> None:
    """Check that particle-mesh Ewald has a meaning for these systems.

    Parameters
    ----------
    charges, positions, cell
        As for `pme_energy`.
    system : int [N]
        System of each atom.
    n_edges : int
        Number of directed edges of the neighbor list.
    parameters : PMEParameters
        Splitting, mesh and slab.
    warn_charged : bool
        Warn of charged systems.

    Raises
    ------
    InputError
        If a value is NaN or infinite, a cell has no volume, systems do not ascend, the mesh is too
        coarse for a cell, the neighbor list is too short, or a slab has no gap.
    """
    charges, positions, cell = charges.detach(), positions.detach().double(), cell.detach().double()
    check_systems(charges, positions, cell, system)
    mesh = torch.tensor(parameters.mesh, device=cell.device)
    spacing = float((torch.linalg.vector_norm(cell, dim=2) / mesh).max())
    if parameters.splitting * spacing > COARSEST:
        raise InputError(
            f"the mesh has a spacing of {spacing:.2g} Å, too coarse for a splitting of "
            f"{parameters.splitting:.2g}/Å: choose parameters for this cell by pme_parameters"
        )
    _check_list(cell, system, n_edges, parameters.cutoff)
    if parameters.slab is not None:
        _check_gap(positions, cell, system, parameters.slab)
    if warn_charged:
        _warn_of_charges(charges, system, len(cell))


def check_systems(charges: Tensor, positions: Tensor, cell: Tensor, system: Tensor) -> None:
    """Raise `InputError` unless values are finite, cells have a volume, and systems ascend."""
    for name, values in (("charge", charges[:, None]), ("position", positions)):
        bad = (~torch.isfinite(values).all(1)).nonzero()
        if len(bad):
            raise InputError(
                f"the {name} of atom {int(bad[0, 0])} is NaN or infinite ({len(bad)} such atoms): "
                "the simulation may have blown up"
            )
    check_cells(cell)
    if len(system) and not (
        0 <= int(system.min()) <= int(system.max()) < len(cell) and bool((system.diff() >= 0).all())
    ):
        raise InputError(f"batch must ascend, from 0 to at most {len(cell) - 1}: sort the atoms")


def check_edges(n_atoms: int, row_ptr: Tensor, senders: Tensor) -> None:
    """Check that a neighbor list in CSR form has edges between atoms, in both directions.

    Each atom of such a list sends as many edges as it receives.

    Raises
    ------
    InputError
        If it does not, or if a shape or dtype is wrong.
    """
    check_integers(row_ptr=row_ptr, senders=senders)
    check_shape("row_ptr", row_ptr, (n_atoms + 1,))
    check_shape("senders", senders, ("E",))
    received = row_ptr.diff()
    if int(row_ptr[0]) != 0 or int(row_ptr[-1]) != len(senders) or bool((received < 0).any()):
        raise InputError(f"row_ptr must ascend from 0 to the number of edges, {len(senders)}")
    if not len(senders):
        return
    if not 0 <= int(senders.min()) <= int(senders.max()) < n_atoms:
        raise InputError(f"senders must be from 0 to {n_atoms - 1}")
    sent = torch.bincount(senders.long(), minlength=n_atoms)
    if int((sent - received).abs().sum()) > ONE_WAY * len(senders):
        raise InputError(
            "the neighbor list lacks the reverse of many edges: give each pair in both directions"
        )


def _check_list(cell: Tensor, system: Tensor, n_edges: int, cutoff: float) -> None:
    """Raise `InputError` if a neighbor list has far fewer edges than atoms at their mean density.

    Atoms that are spread unevenly have more neighbors, never much fewer. The regular lattices with
    100 neighbors have at most 20 % fewer.
    """
    counts = torch.bincount(system.long(), minlength=len(cell)).double()
    neighbors = counts / torch.linalg.det(cell).abs() * (4 / 3 * math.pi * cutoff**3) - 1
    expected = float((counts * neighbors)[neighbors > MANY_NEIGHBORS].sum())
    if n_edges < FEWEST_EDGES * expected:
        raise InputError(
            f"the neighbor list has {n_edges} edges, but about {expected:.0f} are within the "
            f"cutoff of {cutoff:g} Å: build it for this cutoff, with images, and each pair in both "
            "directions"
        )


def _check_gap(positions: Tensor, cell: Tensor, system: Tensor, axis: int) -> None:
    """Raise `InputError` unless the gap of each slab is as wide as the longer vector in its plane.

    Across such a gap, waves in the plane of the slab decay to 0.2 % in the potential, and products
    of two such to 4e-6.
    """
    first, second = cell[:, axis - 2], cell[:, axis - 1]
    across = torch.linalg.cross(first, second)
    normal = across / torch.linalg.vector_norm(across, dim=1, keepdim=True)
    height = (cell[:, axis] * normal).sum(1).abs()
    longer = torch.linalg.vector_norm(torch.stack([first, second]), dim=2).amax(0)
    z = (positions * normal[system.long()]).sum(1)
    for b in range(len(cell)):
        own = z[system == b]
        if not len(own):
            continue
        extent = float(own.max() - own.min())
        if float(height[b]) - extent < float(longer[b]):
            raise InputError(
                f"the slab of system {b} is {extent:.1f} Å thick in a cell of "
                f"{float(height[b]):.1f} Å: leave a gap of at least {float(longer[b]):.1f} Å, and "
                "do not wrap atoms across it"
            )


def _warn_of_charges(charges: Tensor, system: Tensor, n_systems: int) -> None:
    """Warn of systems that are charged."""
    totals = charges.new_zeros(n_systems, dtype=torch.float64)
    totals.index_add_(0, system.long(), charges.double())
    charged = (totals.abs() > NEUTRAL).nonzero()
    if len(charged):
        b = int(charged[0, 0])
        warnings.warn(
            f"system {b} has the charge {float(totals[b]):+.3g} e ({len(charged)} such systems): "
            "its energy includes a uniform background that neutralizes it",
            stacklevel=4,
        )
