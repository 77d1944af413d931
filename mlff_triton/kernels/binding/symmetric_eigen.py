"""Eigenvalues and eigenvectors of symmetric 3x3 matrices, one matrix per lane.

    A v_k = w_k v_k      w_0 <= w_1 <= w_2

The method is cyclic Jacobi rotations in float64, whatever the dtype of the matrices. They are as
exact for degenerate eigenvalues as for others, and the vectors are orthogonal up to rounding errors
(G. H. Golub and C. F. Van Loan, "Matrix Computations", section 8.5).

Kernels call `symmetric_eigen_of`. The operator `symmetric_eigen` takes any symmetric matrices,
including those with negative eigenvalues, which no covariance has.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_floats, check_shape

SWEEPS = tl.constexpr(8)  # five are enough for almost all matrices, as convergence is quadratic

_LANES = 64


@triton.jit
def _rotate(app, aqq, apq, apr, aqr, p, q):
    """Make ``apq`` zero by a rotation of axes p and q; return the other new values.

    ``r`` is the third axis. The vectors p and q are tuples of three components.
    """
    gap = aqq - app
    root = tl.abs(gap) + tl.sqrt(gap * gap + 4 * apq * apq)
    tangent = tl.where(root > 0, 2 * apq / tl.where(root > 0, root, 1.0), 0.0)
    tangent = tl.where(gap < 0, -tangent, tangent)
    cosine = 1 / tl.sqrt(1 + tangent * tangent)
    sine = tangent * cosine
    turned_p = (
        cosine * p[0] - sine * q[0],
        cosine * p[1] - sine * q[1],
        cosine * p[2] - sine * q[2],
    )
    turned_q = (
        sine * p[0] + cosine * q[0],
        sine * p[1] + cosine * q[1],
        sine * p[2] + cosine * q[2],
    )
    return (
        app - tangent * apq,
        aqq + tangent * apq,
        cosine * apr - sine * aqr,
        sine * apr + cosine * aqr,
        turned_p,
        turned_q,
    )


@triton.jit
def _exchange(w, x, p, q):
    """Return two eigenvalues in ascending order, and their vectors."""
    swap = w > x
    first = (tl.where(swap, q[0], p[0]), tl.where(swap, q[1], p[1]), tl.where(swap, q[2], p[2]))
    second = (tl.where(swap, p[0], q[0]), tl.where(swap, p[1], q[1]), tl.where(swap, p[2], q[2]))
    return tl.where(swap, x, w), tl.where(swap, w, x), first, second


@triton.jit
def symmetric_eigen_of(xx, xy, xz, yy, yz, zz):
    """Return ascending eigenvalues of matrices given by their float64 elements, and the vectors.

    The vectors are tuples of three components.
    """
    size = tl.maximum(tl.maximum(tl.abs(xx), tl.abs(yy)), tl.abs(zz))
    size = tl.maximum(tl.maximum(size, tl.abs(xy)), tl.maximum(tl.abs(xz), tl.abs(yz)))
    size = tl.where(size > 0, size, 1.0)  # so that squares neither overflow nor vanish
    xx, xy, xz, yy, yz, zz = xx / size, xy / size, xz / size, yy / size, yz / size, zz / size
    zero = xx * 0.0
    one = zero + 1.0
    u, v, w = (one, zero, zero), (zero, one, zero), (zero, zero, one)
    for _ in range(SWEEPS):
        xx, yy, xz, yz, u, v = _rotate(xx, yy, xy, xz, yz, u, v)
        xx, zz, xy, yz, u, w = _rotate(xx, zz, xz, zero, yz, u, w)
        yy, zz, xy, xz, v, w = _rotate(yy, zz, yz, xy, zero, v, w)
        yz = zero
    xx, yy, u, v = _exchange(xx, yy, u, v)
    yy, zz, v, w = _exchange(yy, zz, v, w)
    xx, yy, u, v = _exchange(xx, yy, u, v)
    return (xx * size, yy * size, zz * size), u, v, w


@triton.jit
def _symmetric_eigen_kernel(matrices_ptr, values_ptr, vectors_ptr, n_matrices, LANES: tl.constexpr):
    """Write eigenvalues [n_matrices, 3] and vectors [n_matrices, 3, 3]. Grid: (blocks of LANES,).

    Reads the lower triangles of matrices [n_matrices, 3, 3].
    """
    matrix = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    mask = matrix < n_matrices
    element = matrices_ptr + matrix * 9
    xx = tl.load(element, mask, other=0.0).to(tl.float64)
    xy = tl.load(element + 3, mask, other=0.0).to(tl.float64)
    yy = tl.load(element + 4, mask, other=0.0).to(tl.float64)
    xz = tl.load(element + 6, mask, other=0.0).to(tl.float64)
    yz = tl.load(element + 7, mask, other=0.0).to(tl.float64)
    zz = tl.load(element + 8, mask, other=0.0).to(tl.float64)
    values, u, v, w = symmetric_eigen_of(xx, xy, xz, yy, yz, zz)
    for k in tl.static_range(3):
        tl.store(values_ptr + matrix * 3 + k, values[k], mask)
        row = vectors_ptr + matrix * 9 + 3 * k
        tl.store(row, u[k], mask)
        tl.store(row + 1, v[k], mask)
        tl.store(row + 2, w[k], mask)


def symmetric_eigen(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Compute eigenvalues and eigenvectors of symmetric 3x3 matrices, without gradients.

    It stands in for `torch.linalg.eigh`. The signs of vectors are arbitrary, and so are vectors
    within the space that belongs to equal eigenvalues.

    Parameters
    ----------
    matrices : [..., 3, 3]
        Symmetric matrices, float32 or float64. Only the lower triangles are read.

    Returns
    -------
    values : [..., 3]
        Eigenvalues in ascending order.
    vectors : [..., 3, 3]
        Normalized eigenvectors as columns.

    Raises
    ------
    InputError
        If the shape or the dtype is wrong.
    BackendError
        If the matrices are not on a GPU.

    Examples
    --------
    >>> values, vectors = symmetric_eigen(torch.eye(3, device="cuda").expand(800, 3, 3))
    >>> values.shape
    torch.Size([800, 3])
    """
    check_floats(matrices=matrices)
    check_shape("matrices", matrices, (*matrices.shape[:-2], 3, 3))
    matrices = matrices.contiguous()
    values, vectors = matrices.new_empty(matrices.shape[:-1]), torch.empty_like(matrices)
    n_matrices = matrices.numel() // 9
    if n_matrices:
        with torch.cuda.device_of(matrices):
            _symmetric_eigen_kernel[(triton.cdiv(n_matrices, _LANES),)](
                matrices, values, vectors, n_matrices, LANES=_LANES, num_warps=2
            )
    return values, vectors
