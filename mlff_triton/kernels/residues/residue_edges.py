"""Features of the edges between residues: all distances of backbone atoms, and sequence offsets.

    e_ij = norm(t[offset_ij] + sum_ab rbf(|r_ia - r_jb|) D_ab) W + b

Atoms a and b are N, CA, C, O and a virtual CB. One kernel places CB, one computes all
distances, and one expands and multiplies them, so that no basis function is ever stored.

Source: J. Dauparas et al., "Robust deep learning-based protein sequence design using ProteinMPNN",
https://doi.org/10.1126/science.add2187.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.early_launch import early_launch, wait_for_previous
from mlff_triton.kernels.numerics.product import (
    add_linear,
    begin_sum,
    bias_sum,
    end_sum,
    load_weight,
    multiply,
    scheme_of,
)
from mlff_triton.kernels.residues import types as backbone
from mlff_triton.kernels.residues.edge_blocks import has_room, layer_norm
from mlff_triton.kernels.residues.types import BackboneWeights

_ALPHA = tl.constexpr(6)  # index of the pair CA, CA
_EPS = tl.constexpr(1e-6)  # Å^2, added to squared distances
_N_PAIRS = tl.constexpr(backbone.N_PAIRS)
_N_RBF = tl.constexpr(backbone.N_RBF)
_NEAREST = tl.constexpr(backbone.NEAREST)
_SPACING = tl.constexpr((backbone.FARTHEST - backbone.NEAREST) / (backbone.N_RBF - 1))  # Å
_WIDTH = tl.constexpr((backbone.FARTHEST - backbone.NEAREST) / backbone.N_RBF)  # Å
_OFFSET = tl.constexpr(backbone.FARTHEST_OFFSET)


@triton.jit
def _load_atom(atoms_ptr, residues, mask, ATOM: tl.constexpr):
    """Load the position of an atom N, CA, C or O of residues, three blocks [M] in Å."""
    pointers = atoms_ptr + residues * 12 + 3 * ATOM
    x = tl.load(pointers, mask, other=0.0)
    y = tl.load(pointers + 1, mask, other=0.0)
    return x, y, tl.load(pointers + 2, mask, other=0.0)


@triton.jit
def _store_atom(complete_ptr, residues, mask, x, y, z, ATOM: tl.constexpr):
    """Store the position of an atom of residues."""
    pointers = complete_ptr + residues * 15 + 3 * ATOM
    tl.store(pointers, x, mask)
    tl.store(pointers + 1, y, mask)
    tl.store(pointers + 2, z, mask)


@triton.jit
def _complete_kernel(
    atoms_ptr, complete_ptr, n_residues, EARLY_LAUNCH: tl.constexpr, M: tl.constexpr
):
    """Write atoms [n_residues, 5, 3] with a virtual CB. Grid: (blocks of M residues,).

    Reads atoms [n_residues, 4, 3].
    """
    wait_for_previous(EARLY_LAUNCH)
    residues = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    mask = residues < n_residues
    nx, ny, nz = _load_atom(atoms_ptr, residues, mask, 0)
    x, y, z = _load_atom(atoms_ptr, residues, mask, 1)
    cx, cy, cz = _load_atom(atoms_ptr, residues, mask, 2)
    ox, oy, oz = _load_atom(atoms_ptr, residues, mask, 3)
    ux, uy, uz = x - nx, y - ny, z - nz
    vx, vy, vz = cx - x, cy - y, cz - z
    bx = x - 0.58273431 * (uy * vz - uz * vy) + 0.56802827 * ux - 0.54067466 * vx
    by = y - 0.58273431 * (uz * vx - ux * vz) + 0.56802827 * uy - 0.54067466 * vy
    bz = z - 0.58273431 * (ux * vy - uy * vx) + 0.56802827 * uz - 0.54067466 * vz
    _store_atom(complete_ptr, residues, mask, nx, ny, nz, 0)
    _store_atom(complete_ptr, residues, mask, x, y, z, 1)
    _store_atom(complete_ptr, residues, mask, cx, cy, cz, 2)
    _store_atom(complete_ptr, residues, mask, ox, oy, oz, 3)
    _store_atom(complete_ptr, residues, mask, bx, by, bz, 4)


@triton.jit
def _distances_kernel(
    complete_ptr,
    sources_ptr,
    distances_ptr,
    all_distances_ptr,
    n_edges,
    n_neighbors,
    EARLY_LAUNCH: tl.constexpr,
    M: tl.constexpr,
):
    """Write the distances of all pairs of atoms [n_edges, 32]. Grid: (blocks of M edges,).

    Reads atoms [R, 5, 3], and the sources and CA distances [n_edges] of edges.
    """
    wait_for_previous(EARLY_LAUNCH)
    edge, pair = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M), tl.arange(0, 32)
    here, there = edge // n_neighbors, tl.load(sources_ptr + edge, edge < n_edges, other=0)
    first = complete_ptr + here[:, None] * 15 + (pair // 5 * 3)[None, :]
    second = complete_ptr + there.to(tl.int64)[:, None] * 15 + (pair % 5 * 3)[None, :]
    mask = (edge < n_edges)[:, None] & (pair < 25)[None, :]
    x = tl.load(first, mask, other=0.0) - tl.load(second, mask, other=0.0)
    y = tl.load(first + 1, mask, other=0.0) - tl.load(second + 1, mask, other=0.0)
    z = tl.load(first + 2, mask, other=0.0) - tl.load(second + 2, mask, other=0.0)
    distances = tl.sqrt(x * x + y * y + z * z + _EPS)  # [M, 32]
    of_alpha = tl.load(distances_ptr + edge, edge < n_edges, other=0.0)
    distances = tl.where((pair == _ALPHA)[None, :], of_alpha[:, None], distances)
    offsets = edge[:, None] * 32 + pair[None, :]
    tl.store(all_distances_ptr + offsets, distances, (edge < n_edges)[:, None])


@triton.jit
def _residue_edges_kernel(
    distances_ptr,
    sources_ptr,
    numbers_ptr,
    chains_ptr,
    offsets_ptr,
    basis_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    out_ptr,
    out_bias_ptr,
    edges_ptr,
    n_edges,
    n_neighbors,
    eps: tl.float64,
    EARLY_LAUNCH: tl.constexpr,
    PRECISION: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    M: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write edges [n_edges, C]. Grid: (blocks of M edges,).

    Reads the distances [n_edges, 32] and sources [n_edges] of edges, numbers and chains [R] of
    residues, and the weights of `BackboneWeights`.
    """
    wait_for_previous(EARLY_LAUNCH)
    edge, columns = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M), tl.arange(0, C)
    mask = edge < n_edges
    here = edge // n_neighbors
    there = tl.load(sources_ptr + edge, mask, other=0).to(tl.int64)
    offset = tl.load(numbers_ptr + here, mask, other=0) - tl.load(
        numbers_ptr + there, mask, other=0
    )
    offset = tl.minimum(tl.maximum(offset + _OFFSET, 0), 2 * _OFFSET)
    is_same = tl.load(chains_ptr + here, mask) == tl.load(chains_ptr + there, mask)
    offset = tl.where(is_same, offset, 2 * _OFFSET + 1)
    acc = tl.load(offsets_ptr + offset[:, None] * C + columns[None, :], mask[:, None], other=0.0)
    acc = begin_sum(acc.to(ACCUMULATE), PRECISION)

    PAIRS: tl.constexpr = K // _N_RBF
    center = tl.arange(0, _N_RBF).to(ACCUMULATE) * _SPACING + _NEAREST
    for start in tl.range(0, _N_PAIRS * _N_RBF, K, num_stages=STAGES):
        pair = start // _N_RBF + tl.arange(0, PAIRS)
        pointers = distances_ptr + edge[:, None] * 32 + pair[None, :]
        distances = tl.load(pointers, mask[:, None], other=0.0)  # [M, PAIRS]
        scaled = (distances[:, :, None] - center[None, None, :]) * (1 / _WIDTH)
        basis = tl.reshape(tl.exp(-scaled * scaled), (M, K))
        weight = load_weight(basis_ptr, _N_PAIRS * _N_RBF, C, start, 0, PRECISION, K, C)
        acc = multiply(basis, weight, acc, PRECISION)
    total = layer_norm(end_sum(acc, PRECISION), norm_weight_ptr, norm_bias_ptr, eps)
    acc = bias_sum(out_bias_ptr, 0, ACCUMULATE, PRECISION, M, C)
    edges = end_sum(add_linear(total, out_ptr, acc, C, C, 0, 0, PRECISION), PRECISION)
    tl.store(edges_ptr + edge[:, None] * C + columns[None, :], edges, mask[:, None])


class _Tile(NamedTuple):
    """Rows, inner indices per step, warps, and stages of loads."""

    rows: int
    inner: int
    warps: int
    stages: int


LARGE, SMALL = _Tile(64, 64, 4, 2), _Tile(32, 32, 4, 1)


def residue_edges(
    atoms: Tensor,
    sources: Tensor,
    distances: Tensor,
    numbers: Tensor,
    chains: Tensor,
    weights: BackboneWeights,
) -> Tensor:
    """Compute the features of edges between residues, without gradients.

    Parameters
    ----------
    atoms : [R, 4, 3]
        Positions of N, CA, C and O of each residue in Å, contiguous.
    sources : int32 [R, K]
        Row of each edge's sender.
    distances : [R, K]
        Distance between the two CA atoms of each edge in Å.
    numbers : int64 [R]
        Number of each residue in the sequence.
    chains : int64 [R]
        Chain of each residue.
    weights : BackboneWeights
        Weights, of the dtype of ``atoms`` or of half precision.

    Returns
    -------
    [R, K, C]
        Features of the edges, of the weights' dtype.
    """
    (n_residues, n_neighbors), n_edges = sources.shape, sources.numel()
    edges = weights.offsets.new_empty(*sources.shape, len(weights.out.bias))
    complete, all_distances = atoms.new_empty(n_residues, 5, 3), atoms.new_empty(n_edges, 32)
    tile = LARGE if has_room(atoms) else SMALL
    with torch.cuda.device_of(atoms):
        _complete_kernel[(triton.cdiv(n_residues, 64),)](
            atoms,
            complete,
            n_residues,
            M=64,
            num_warps=2,
            **early_launch(atoms),
        )
        _distances_kernel[(triton.cdiv(n_edges, 64),)](
            complete,
            sources,
            distances,
            all_distances,
            n_edges,
            n_neighbors,
            M=64,
            **early_launch(atoms),
        )
        _residue_edges_kernel[(triton.cdiv(n_edges, tile.rows),)](
            all_distances,
            sources,
            numbers,
            chains,
            weights.offsets,
            weights.distances,
            *weights.norm[:2],
            *weights.out,
            edges,
            n_edges,
            n_neighbors,
            weights.norm[2],
            PRECISION=scheme_of(weights.distances, weights.offsets),
            ACCUMULATE=accumulator(atoms),
            C=edges.shape[2],
            K=tile.inner,
            M=tile.rows,
            STAGES=tile.stages,
            num_warps=tile.warps,
            **early_launch(atoms),
        )
    return edges
