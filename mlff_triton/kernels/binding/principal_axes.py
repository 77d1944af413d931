"""Centers and principal axes of complexes, the frames of frame averaging.

    center = mean_k(x_k)      C = sum_k (x_k - center) (x_k - center)^T      axes = eigenvectors(C)

One program computes the center of a complex, its covariance and the eigenvectors, in float64. It
reads only the atoms, and does not wait for the host.

Source: O. Puny et al., "Frame Averaging for Invariant and Equivariant Network Design",
https://arxiv.org/abs/2110.03336.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.binding.symmetric_eigen import symmetric_eigen_of
from mlff_triton.kernels.common.checks import check_device, check_shape

_LARGEST_BLOCK = 1024


@triton.jit
def _load_atoms(positions_ptr, kept_ptr, atom, inside):
    """Load positions x, y and z of atoms, and 1 for those that are kept, all in float64."""
    kept = tl.load(kept_ptr + atom, inside, other=0).to(tl.float64)
    x = tl.load(positions_ptr + atom * 3, inside, other=0.0).to(tl.float64)
    y = tl.load(positions_ptr + atom * 3 + 1, inside, other=0.0).to(tl.float64)
    z = tl.load(positions_ptr + atom * 3 + 2, inside, other=0.0).to(tl.float64)
    return x, y, z, kept


@triton.jit
def _principal_axes_kernel(
    positions_ptr, kept_ptr, centers_ptr, axes_ptr, length, BLOCK: tl.constexpr
):
    """Write centers [B, 3] and axes [B, 3, 3]. Grid: (B,).

    Reads positions [B, length, 3] and kept [B, length].
    """
    complex_ = tl.program_id(0).to(tl.int64)
    first = complex_ * length
    count = tl.zeros((BLOCK,), tl.float64)
    sum_x, sum_y, sum_z = count, count, count
    for start in range(0, length, BLOCK):
        index = start + tl.arange(0, BLOCK)
        x, y, z, kept = _load_atoms(positions_ptr, kept_ptr, first + index, index < length)
        count += kept
        sum_x += kept * x
        sum_y += kept * y
        sum_z += kept * z
    n_kept = tl.maximum(tl.sum(count, 0), 1.0)
    center_x, center_y = tl.sum(sum_x, 0) / n_kept, tl.sum(sum_y, 0) / n_kept
    center_z = tl.sum(sum_z, 0) / n_kept

    xx = tl.zeros((BLOCK,), tl.float64)
    xy, xz, yy, yz, zz = xx, xx, xx, xx, xx
    for start in range(0, length, BLOCK):
        index = start + tl.arange(0, BLOCK)
        x, y, z, kept = _load_atoms(positions_ptr, kept_ptr, first + index, index < length)
        x -= kept * center_x
        y -= kept * center_y
        z -= kept * center_z
        xx += x * x
        xy += x * y
        xz += x * z
        yy += y * y
        yz += y * z
        zz += z * z
    _, u, v, w = symmetric_eigen_of(
        tl.sum(xx, 0), tl.sum(xy, 0), tl.sum(xz, 0), tl.sum(yy, 0), tl.sum(yz, 0), tl.sum(zz, 0)
    )

    tl.store(centers_ptr + complex_ * 3, center_x)
    tl.store(centers_ptr + complex_ * 3 + 1, center_y)
    tl.store(centers_ptr + complex_ * 3 + 2, center_z)
    for k in tl.static_range(3):
        row = axes_ptr + complex_ * 9 + 3 * k
        tl.store(row, u[k])
        tl.store(row + 1, v[k])
        tl.store(row + 2, w[k])


def principal_axes(positions: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the centers and the principal axes of complexes, without gradients.

    Parameters
    ----------
    positions : [B, L, 3]
        Positions in Å, padded; float32 or float64.
    kept : bool [B, L]
        True for atoms, False for padding. Padding does not count for the center and is not shifted
        by it, but it enters the covariance, as in DualBind, where its positions are zero.

    Returns
    -------
    centers : float64 [B, 3]
        Centers in Å.
    axes : float64 [B, 3, 3]
        Principal axes as columns, the axis of the smallest extent first, with arbitrary signs.

    Raises
    ------
    InputError
        If the shapes do not fit together, or the tensors are on different devices.
    BackendError
        If the tensors are not on a GPU.
    """
    check_device(positions, kept)
    check_shape("positions", positions, (*kept.shape, 3))
    n_complexes, length = kept.shape
    centers = positions.new_empty(n_complexes, 3, dtype=torch.float64)
    axes = positions.new_empty(n_complexes, 3, 3, dtype=torch.float64)
    if n_complexes:
        with torch.cuda.device_of(positions):
            _principal_axes_kernel[(n_complexes,)](
                positions.contiguous(),
                kept.contiguous(),
                centers,
                axes,
                length,
                BLOCK=min(_LARGEST_BLOCK, triton.next_power_of_2(max(length, 16))),
            )
    return centers, axes
