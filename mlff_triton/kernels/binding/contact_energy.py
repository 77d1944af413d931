"""Energies of contacts between the atoms of ligands and proteins.

    l_i = silu(x_i U + u) D + d      t_j = silu(x_j W + w)
    energy = sum_ij l_i . t_j      for pairs closer than a threshold

One kernel computes the vectors of ligand atoms. Another one computes those of a block of protein
atoms, sums the vectors of all ligand atoms in contact with each of them, and stores the energy of
the block. Nothing is stored per pair, and energies of blocks are added in a fixed order.

Source: M. Liu and S. G. Paliwal, "DualBind: A Dual-Loss Framework for Protein-Ligand Binding
Affinity Prediction", https://arxiv.org/abs/2406.07770.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.binding.types import Layout, Readout
from mlff_triton.kernels.common.activations import activate
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.common.hardware import has_large_memory
from mlff_triton.kernels.numerics.product import total
from mlff_triton.kernels.numerics.stored_rows import multiply_stored, store_split

ROWS, COLUMNS, INNER, LIGAND = 64, 128, 32, 16
"""Rows, columns and inner indices of blocks, and ligand atoms per block of contacts."""


@triton.jit
def _ligand_rows_kernel(
    x_ptr,
    row_ptr_ptr,
    n_ligand_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    n_rows,
    ACTIVATION: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write ``activation(x w + b)``, as halves [2, n_rows, C], at the rows of ligand atoms.

    Reads the halves of x [2, n_rows, C], row_ptr [B + 1], n_ligand [B], and a map. Grid: (blocks of
    M ligand atoms, of N columns, B).
    """
    complex_, begin = tl.program_id(2), tl.program_id(0) * M
    n_ligand = tl.load(n_ligand_ptr + complex_)
    if begin >= n_ligand:
        return
    first = tl.load(row_ptr_ptr + complex_).to(tl.int64)
    row, last = first + begin + tl.arange(0, M), first + n_ligand
    column = tl.program_id(1) * N + tl.arange(0, N)
    row_read = tl.minimum(row, last - 1)
    y = multiply_stored(x_ptr, row_read, n_rows, weight_ptr, column, C, C, M, N, K, ROUNDS=True)
    y = activate(y + tl.load(bias_ptr + column)[None, :], ACTIVATION)
    store_split(y, out_ptr, row, column, n_rows, last, C)


@triton.jit
def _square(x_ptr, y_ptr, axis: tl.constexpr):
    """Return the squared difference [M, N] of coordinates, rounded to float32, in float64."""
    difference = tl.load(x_ptr + axis)[:, None] - tl.load(y_ptr + axis)[None, :]
    difference = difference.to(tl.float64)
    return (difference * difference).to(tl.float32).to(tl.float64)


@triton.jit
def _distances(positions_ptr, row, other):
    """Compute the distances [M, N] of rows, rounded as by PyTorch on a GPU.

    Squares are added in the order x, z, y, and every result is rounded to float32. So a pair at the
    threshold is in contact here exactly if it is in PyTorch.
    """
    x, y = positions_ptr + row * 3, positions_ptr + other * 3
    sum2 = (_square(x, y, 0) + _square(x, y, 2)).to(tl.float32).to(tl.float64)
    sum2 = (sum2 + _square(x, y, 1)).to(tl.float32).to(tl.float64)
    return tl.sqrt(sum2).to(tl.float32)


@triton.jit
def _contact_energy_kernel(
    x_ptr,
    positions_ptr,
    vectors_ptr,
    row_ptr_ptr,
    n_ligand_ptr,
    weight_ptr,
    bias_ptr,
    energies_ptr,
    n_rows,
    threshold,
    C: tl.constexpr,
    LIGAND: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write energies [B, blocks, C / N]. Grid: (blocks of M atoms of the protein, of columns, B).

    Reads the halves of x and of the ligand's vectors [2, n_rows, C], positions [n_rows, 3], row_ptr
    [B + 1], n_ligand [B], and a map.
    """
    complex_, begin = tl.program_id(2), tl.program_id(0) * M
    first = tl.load(row_ptr_ptr + complex_).to(tl.int64)
    n_ligand = tl.load(n_ligand_ptr + complex_)
    last = tl.load(row_ptr_ptr + complex_ + 1)
    begin += first + n_ligand
    if begin >= last:
        return
    row = begin + tl.arange(0, M)
    live = row < last
    row = tl.minimum(row, last - 1)
    column = tl.program_id(1) * N + tl.arange(0, N)
    target = multiply_stored(x_ptr, row, n_rows, weight_ptr, column, C, C, M, N, K, ROUNDS=True)
    target = activate(target + tl.load(bias_ptr + column)[None, :], "silu")  # [M, N]

    touching, small = tl.zeros((M, N), tl.float32), tl.zeros((M, N), tl.float32)
    for start in range(0, n_ligand, LIGAND):
        atom = start + tl.arange(0, LIGAND)
        known = atom < n_ligand
        other = first + tl.where(known, atom, 0)
        close = _distances(positions_ptr, row, other) < threshold
        close = (close & live[:, None] & known[None, :]).to(tl.float16)
        pointers = vectors_ptr + other[:, None] * C + column[None, :]
        touching = tl.dot(close, tl.load(pointers), touching)
        pointers = vectors_ptr + (other + n_rows)[:, None] * C + column[None, :]
        small = tl.dot(close, tl.load(pointers), small)
    energy = tl.sum(target * total((touching, small)))
    block = complex_.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    tl.store(energies_ptr + block * tl.num_programs(1) + tl.program_id(1), energy)


def contact_energy(
    x: Tensor,
    positions: Tensor,
    layout: Layout,
    max_lengths: tuple[int, int],
    threshold: float,
    readout: Readout,
) -> Tensor:
    """Compute the energies of the contacts of complexes, without gradients.

    Parameters
    ----------
    x : float16 [2, T, C]
        Atoms, the ligand's first in each complex, as halves; C is a power of two, 16 to 256.
    positions : float32 [T, 3]
        Positions in Å.
    layout : Layout
        Rows of the tokens.
    max_lengths : (int, int)
        Number of atoms of the largest ligand and of the largest protein, or more. Passing them
        spares the host a wait for the GPU.
    threshold : float
        Distance in Å below which atoms are in contact.
    readout : Readout
        Weights, as halves.

    Returns
    -------
    float32 [B]
        Energies, in the unit of the weights.

    Raises
    ------
    InputError
        If the shapes do not fit together, or the tensors are on different devices.
    BackendError
        If the tensors are not on a GPU.
    """
    check_device(x, positions, *layout, readout.up.weight)
    check_shape("x", x, (2, len(positions), "C"))
    _, n_rows, channels = x.shape
    n_complexes = len(layout.n_ligand)
    sizes = {"C": channels, "M": ROWS, "N": min(COLUMNS, channels), "K": min(INNER, channels)}
    options = sizes | {"num_warps": 8, "num_stages": 2 if has_large_memory(x) else 1}
    ligand_blocks, target_blocks = (triton.cdiv(length, ROWS) for length in max_lengths)
    column_blocks = channels // sizes["N"]
    energies = positions.new_zeros(n_complexes, target_blocks, column_blocks)
    if energies.numel() and ligand_blocks:
        hidden, vectors = torch.empty_like(x), torch.empty_like(x)
        pointers = layout.row_ptr, layout.n_ligand
        with torch.cuda.device_of(x):
            grid = ligand_blocks, column_blocks, n_complexes
            steps = (x, readout.up, hidden, "silu"), (hidden, readout.down, vectors, "none")
            for given, linear, out, activation in steps:
                _ligand_rows_kernel[grid](
                    given, *pointers, *linear, out, n_rows, ACTIVATION=activation, **options
                )
            _contact_energy_kernel[(target_blocks, column_blocks, n_complexes)](
                x,
                positions,
                vectors,
                *pointers,
                *readout.target,
                energies,
                n_rows,
                threshold,
                LIGAND=LIGAND,
                **options,
            )
    return energies.flatten(1).double().sum(1).to(positions.dtype)
