"""Electrostatics of partial charges by particle-mesh Ewald, with all gradients in one pass.

The sum of `ewald_pairs` over a neighbor list and of `mesh_ewald` over a mesh, with the correction
of Yeh and Berkowitz for slabs.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.electrostatics.arguments import check_atoms, system_pointers, systems
from mlff_triton.kernels.electrostatics.ewald_pairs import ewald_pairs
from mlff_triton.kernels.electrostatics.mesh_ewald import mesh_ewald
from mlff_triton.kernels.electrostatics.reference.slab import slab_correction
from mlff_triton.kernels.electrostatics.types import Electrostatics, PMEParameters
from mlff_triton.kernels.electrostatics.validity import check_edges, check_values
from mlff_triton.kernels.ops.segment_sum import segment_sum


def pme_energy(
    charges: Tensor,
    positions: Tensor,
    cell: Tensor,
    batch: Tensor | None,
    row_ptr: Tensor,
    senders: Tensor,
    shifts: Tensor,
    parameters: PMEParameters,
    *,
    check: bool = True,
    warn_charged: bool = False,
) -> Electrostatics:
    """Compute the electrostatic energy of periodic systems, reproducibly to the bit.

    The energy is that of smooth particle-mesh Ewald: U. Essmann et al., J. Chem. Phys. 103, 8577
    (1995), https://doi.org/10.1063/1.470117. Charged systems get a uniform background that
    neutralizes them. Gradients by charges, positions and cell are exact derivatives of the energy.
    They are computed with it, without atomics. Their derivatives come from the reference in plain
    PyTorch, whose sums have no fixed order on a GPU.

    Parameters
    ----------
    charges : [N]
        Partial charges, elementary charges; float32 or float64, which the mesh has, too.
    positions : [N, 3]
        Å, float32 or float64; anywhere. The cell is periodic in all directions, or, for slabs, in
        two.
    cell : [B, 3, 3]
        Lattice vectors as rows, Å; float32 or float64.
    batch : int64 or int32 [N], optional
        System of each atom, ascending; None for one system.
    row_ptr, senders, shifts
        Neighbor list in CSR form, as in `Graph`: int64 or int32 [N + 1], int64 or int32 [E], and
        int8, int32 or int64 [E, 3]. It contains each pair within the cutoff in both directions,
        periodic images included, and may contain more. Small integers save memory traffic.
    parameters : PMEParameters
        From `pme_parameters`, for these cells or somewhat different ones.
    check : bool
        Check values, which waits for the GPU. Use False inside CUDA graphs: NaN in the input then
        makes the energy NaN, and neither the neighbor list nor the gap of a slab is checked.
    warn_charged : bool
        Warn of charged systems, which also waits for the GPU.

    Returns
    -------
    Electrostatics
        Energies, float64 [B], and the potential at each atom, [N].

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, and, with ``check``, if a value is NaN or
        infinite, a cell has no volume, the mesh is too coarse for a cell, the neighbor list has far
        too few edges, edges to no atom or only one direction of pairs, or a slab has no gap.
    BackendError
        If the tensors are not on a GPU. The function of the same name in `reference` runs anywhere.

    Examples
    --------
    >>> graph = neighbor_list(atoms.positions, 9.0, atoms.cell, True).to("cuda")
    >>> parameters = pme_parameters(cell, cutoff=9.0, error=1e-5)
    >>> lists = graph.row_ptr, graph.senders.int(), graph.shifts.to(torch.int8)
    >>> energy, potential = pme_energy(charges, positions, cell, None, *lists, parameters)
    >>> (gradient,) = torch.autograd.grad(energy.sum(), positions)
    """
    check_atoms(charges, positions, cell, batch)
    system = systems(charges, batch)
    if check or warn_charged:
        values = charges, positions, cell, system, len(senders), parameters
        check_values(*values, warn_charged=warn_charged)
    if check:
        check_edges(len(charges), row_ptr, senders)
    atoms = charges, positions, cell, system
    near = ewald_pairs(*atoms, row_ptr, senders, shifts, parameters.splitting, parameters.cutoff)
    far = mesh_ewald(*atoms, parameters)
    energy, potential = near.energy + far.energy, near.potential + far.potential
    if parameters.slab is not None:
        pointers = system_pointers(system, len(cell))
        slab = slab_correction(
            *atoms[:3], system.long(), parameters.slab, lambda rows: segment_sum(rows, pointers)
        )
        energy, potential = energy + slab.energy, potential + slab.potential
    return Electrostatics(energy, potential)
