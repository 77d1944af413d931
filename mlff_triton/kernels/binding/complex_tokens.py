"""Tokens of complexes: the parts that all frames share.

    part_t = group(t) + kind(t)      for the embedded atom, query, key and value
    coordinates_t = axes^T (x_t - center)

Up to queries, keys and values, the network is linear. So each of these is a sum of three parts: a
row for the atom's group, which is its residue or, in a ligand, the atom itself; a row for its kind;
and a part for the coordinates, which is added when a frame is chosen. No matrix product per atom is
left.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.binding.types import PARTS, Layout, Tokens
from mlff_triton.kernels.common.checks import check_device, check_shape
from mlff_triton.kernels.numerics.product import split

_PARTS = tl.constexpr(PARTS)
_ROWS = 8


@triton.jit
def _store_coordinates(
    positions_ptr,
    centers_ptr,
    axes_ptr,
    own_ptr,
    coordinates_ptr,
    row,
    atom,
    complex_,
    n_tokens,
    mask,
):
    """Write the positions [T, 3] and coordinates [3, T] of the rows in a mask."""
    for k in tl.static_range(3):
        tl.store(own_ptr + row * 3 + k, tl.load(positions_ptr + atom * 3 + k, mask), mask)
        total = tl.zeros(row.shape, tl.float64)
        for j in tl.static_range(3):
            offset = tl.load(positions_ptr + atom * 3 + j, mask, other=0.0).to(tl.float64)
            offset -= tl.load(centers_ptr + complex_ * 3 + j, mask, other=0.0)
            total += offset * tl.load(axes_ptr + complex_ * 9 + j * 3 + k, mask, other=0.0)
        tl.store(coordinates_ptr + k * n_tokens + row, total.to(tl.float32), mask)


@triton.jit
def _complex_tokens_kernel(
    positions_ptr,
    kinds_ptr,
    token_ptr,
    n_rows_ptr,
    centers_ptr,
    axes_ptr,
    groups_ptr,
    kind_rows_ptr,
    own_ptr,
    coordinates_ptr,
    embedded_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    length,
    slots,
    n_tokens,
    C: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Write the fields of `Tokens`. Grid: (blocks of ROWS rows,).

    Reads positions [B, length, 3], kinds [B, length], token [n_tokens], the number of rows in use,
    centers [B, 3], axes [B, 3, 3], groups [B, length / slots, 4 C] and kind_rows [V, 4 C].
    """
    n_rows = tl.load(n_rows_ptr)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mask = row < n_rows
    atom = tl.load(token_ptr + row, mask, other=0).to(tl.int64)
    kind = tl.load(kinds_ptr + atom, mask, other=0).to(tl.int64)
    _store_coordinates(
        positions_ptr,
        centers_ptr,
        axes_ptr,
        own_ptr,
        coordinates_ptr,
        row,
        atom,
        atom // length,
        n_tokens,
        mask,
    )
    column = tl.arange(0, C)
    offsets = row[:, None] * C + column[None, :]
    there = mask[:, None]
    for part in tl.static_range(_PARTS):
        group_row = groups_ptr + (atom // slots * _PARTS + part)[:, None] * C + column[None, :]
        kind_row = kind_rows_ptr + (kind * _PARTS + part)[:, None] * C + column[None, :]
        total = tl.load(group_row, there, other=0.0) + tl.load(kind_row, there, other=0.0)
        if part == 0:
            tl.store(embedded_ptr + offsets, total, there)
        elif part == 1:
            tl.store(queries_ptr + offsets, total, there)
        else:
            out_ptr = keys_ptr if part == 2 else values_ptr
            high, low = split(total, "shifted_halves")
            tl.store(out_ptr + offsets, high, there)
            tl.store(out_ptr + (row + n_tokens)[:, None] * C + column[None, :], low, there)


def complex_tokens(
    positions: Tensor,
    kinds: Tensor,
    layout: Layout,
    centers: Tensor,
    axes: Tensor,
    groups: Tensor,
    kind_rows: Tensor,
) -> Tokens:
    """Compute the parts of tokens that all frames share, without gradients.

    Parameters
    ----------
    positions : float32 [B, L, 3]
        Positions of padded atoms in Å.
    kinds : int64 [B, L]
        Kind of each atom, from 0 to V - 1.
    layout : Layout
        Rows of the tokens.
    centers, axes : float64 [B, 3], [B, 3, 3]
        Centers and principal axes of the complexes.
    groups : float32 [B, G, 4, C]
        Parts for each group of L / G consecutive atoms; C is a power of two.
    kind_rows : float32 [V, 4, C]
        Parts for each kind.

    Returns
    -------
    Tokens
        Tokens in the rows of the layout; rows that are not in use are undefined.

    Raises
    ------
    InputError
        If the shapes do not fit together, or the tensors are on different devices.
    BackendError
        If the tensors are not on a GPU.
    """
    check_device(positions, kinds, *layout, centers, axes, groups, kind_rows)
    check_shape("positions", positions, (*kinds.shape, 3))
    check_shape("groups", groups, (len(kinds), "G", PARTS, "C"))
    check_shape("kind_rows", kind_rows, ("V", *groups.shape[2:]))
    n_tokens, channels = len(layout.token), groups.shape[-1]
    own, coordinates = positions.new_empty(n_tokens, 3), positions.new_empty(3, n_tokens)
    rows = positions.new_empty(2, n_tokens, channels)
    split = positions.new_empty(2, 2, n_tokens, channels, dtype=torch.float16)
    tokens = Tokens(own, coordinates, *rows, *split)
    if n_tokens:
        with torch.cuda.device_of(positions):
            _complex_tokens_kernel[(triton.cdiv(n_tokens, _ROWS),)](
                positions.contiguous(),
                kinds.contiguous(),
                layout.token,
                layout.row_ptr[-1:],
                centers.contiguous(),
                axes.contiguous(),
                groups.contiguous(),
                kind_rows.contiguous(),
                *tokens,
                kinds.shape[1],
                kinds.shape[1] // groups.shape[1],
                n_tokens,
                C=channels,
                ROWS=_ROWS,
            )
    return tokens
