"""Dispersion on NVIDIA GPUs, by the D3 of NVIDIA ALCHEMI Toolkit-Ops (nvalchemi-toolkit-ops).

Distances are computed in float64, everything else in float32, with the energies of atoms added up
in float64. The library allows at most five reference coordination numbers per element. The
reference data come from tad-dftd3, and equal those of s-dftd3.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from functools import cache

import numpy as np
import torch
from nvalchemiops.torch.interactions.dispersion import D3Parameters, dftd3
from tad_dftd3.data import R4R2
from tad_dftd3.reference import Reference
from tad_mctc.data.radii import COV_D3

from mlff_triton._common.devices import made_current
from mlff_triton._common.torch_settings import with_own_settings
from mlff_triton.dispersion.contribution import CUTOFF, WIDTH, Contribution, FloatArray
from mlff_triton.dispersion.damping import Damping
from mlff_triton.dispersion.pairs import find_pairs
from mlff_triton.engine.batch import Batch

MESH = 5
"""Largest number of reference coordination numbers per element."""


@cache
def elements() -> frozenset[int]:
    """Return the atomic numbers that have at most `MESH` references."""
    is_reference = Reference(dtype=torch.float64, device=torch.device("cpu")).cn >= 0
    fits = ~is_reference[:, MESH:].any(dim=1)
    fits[0] = False
    return frozenset(fits.nonzero()[:, 0].tolist())


@cache
def _parameters(device: torch.device) -> D3Parameters:
    """Return the reference data on a device, with a row of zeros for atomic number 0."""
    kind = {"dtype": torch.float64, "device": torch.device("cpu")}
    reference = Reference(**kind)
    size = len(reference.cn)
    numbers = reference.cn[:, :MESH]
    is_valid = numbers >= 0
    coefficients = reference.c6[:, :, :MESH, :MESH]
    coefficients = coefficients * (is_valid[:, None, :, None] & is_valid[None, :, None, :])
    return D3Parameters(
        rcov=COV_D3(**kind)[:size],
        r4r2=R4R2(**kind)[:size],
        c6ab=coefficients.contiguous(),
        cn_ref=numbers[:, None, :, None].expand(size, size, MESH, MESH).contiguous(),
        interp_mesh=MESH,
    ).to(device=device, dtype=torch.float32)


@with_own_settings
def compute(
    batch: Batch, damping: Damping, device: torch.device, *, of_atoms: bool
) -> Contribution:
    """Compute the dispersion of a batch; see `mlff_triton.dispersion.on_cpu.compute`."""
    with made_current(device):
        _start(device)
        atom_energies, gradient, virials = _terms(batch, damping, device)
    energy = np.zeros(len(batch.boxes))
    np.add.at(energy, batch.system, atom_energies)
    virial = np.zeros((len(batch.boxes), 3, 3))
    np.add.at(virial, batch.system, virials)
    return Contribution.of_atomic_units(
        energy, gradient, virial, atom_energies if of_atoms else None
    )


@cache
def _start(device: torch.device) -> None:
    """Compile the kernels without the lines that Warp writes to the standard output."""
    hydrogen = Batch.of([1, 1], [[0.0, 0.0, 0.0], [0.0, 0.0, 0.74]])
    with redirect_stdout(io.StringIO()):
        _terms(hydrogen, Damping("", 1.0, 1.0, 0.4, 4.0), device)


def _terms(
    batch: Batch, damping: Damping, device: torch.device
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return energies [N], the gradient [N, 3] and virials [N, 3, 3] of atoms in atomic units.

    Each atom is a separate system for the library, so the library makes no sums in a varying order,
    and results always have the same bits.
    """
    pairs, n_atoms = find_pairs(batch, device), len(batch.numbers)
    energies, forces, _, virials = dftd3(
        pairs.positions,
        torch.from_numpy(batch.numbers.astype(np.int32)).to(device),
        a1=damping.a1,
        a2=damping.a2,
        s8=damping.s8,
        s6=damping.s6,
        s5_smoothing_on=CUTOFF - WIDTH,
        s5_smoothing_off=CUTOFF,
        d3_params=_parameters(device),
        batch_idx=torch.arange(n_atoms, dtype=torch.int32, device=device),
        cell=pairs.cells[torch.from_numpy(batch.system).to(device)],
        neighbor_list=pairs.others.expand(2, -1),
        neighbor_ptr=pairs.ptr,
        unit_shifts=pairs.shifts,
        compute_virial=True,
        num_systems=n_atoms,
    )
    found = (energies, -forces, -virials)  # its virial is minus the derivative by strain
    of_energy, of_gradient, of_virial = (values.double().cpu().numpy() for values in found)
    return of_energy, of_gradient, of_virial
