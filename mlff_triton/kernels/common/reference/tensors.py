"""Algebra of 3x3 tensors per atom and channel, ``x[9, N, F]`` or ``t[3, 3, N, F]``.

The adjoint of a map takes the gradient of its result to the gradient of its argument.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.numerics.split import SplitWeight

PARTS = (1, 3, 5)
PART_OF_COMPONENT = (0, 1, 1, 1, 2, 2, 2, 2, 2)  # I, a and S


def compose(x: Tensor) -> Tensor:
    """Return the matrices of components: [9, N, F] -> [3, 3, N, F]."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x.unbind(0)
    entries = [i + s00, s01 - a2, s02 + a1, s01 + a2, i + s11, s12 - a0, s02 - a1, s12 + a0]
    full: Tensor = torch.stack([*entries, i - s00 - s11]).unflatten(0, (3, 3))
    return full


def compose_adjoint(t: Tensor) -> Tensor:
    """Apply the adjoint of `compose`: [3, 3, N, F] -> [9, N, F]."""
    t00, t01, t02, t10, t11, t12, t20, t21, t22 = t.flatten(0, 1).unbind(0)
    skew = [t21 - t12, t02 - t20, t10 - t01]
    symmetric = [t00 - t22, t01 + t10, t02 + t20, t11 - t22, t12 + t21]
    return torch.stack([t00 + t11 + t22, *skew, *symmetric])


def decompose(t: Tensor) -> Tensor:
    """Return the components of matrices: [3, 3, N, F] -> [9, N, F]."""
    t00, t01, t02, t10, t11, t12, t20, t21, t22 = t.flatten(0, 1).unbind(0)
    i = (t00 + t11 + t22) / 3
    skew = [(t21 - t12) / 2, (t02 - t20) / 2, (t10 - t01) / 2]
    symmetric = [t00 - i, (t01 + t10) / 2, (t02 + t20) / 2, t11 - i, (t12 + t21) / 2]
    return torch.stack([i, *skew, *symmetric])


def decompose_adjoint(x: Tensor) -> Tensor:
    """Apply the adjoint of `decompose`: [9, N, F] -> [3, 3, N, F]."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x.unbind(0)
    t22 = (i - s00 - s11) / 3
    upper = [(s01 - a2) / 2, (s02 + a1) / 2, (s12 - a0) / 2]
    lower = [(s01 + a2) / 2, (s02 - a1) / 2, (s12 + a0) / 2]
    entries = [t22 + s00, upper[0], upper[1], lower[0], t22 + s11, upper[2], lower[1], lower[2]]
    full: Tensor = torch.stack([*entries, t22]).unflatten(0, (3, 3))
    return full


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of matrices [3, 3, N, F]."""
    return torch.stack([row[0] * b[0] + row[1] * b[1] + row[2] * b[2] for row in a])


def scale_parts(factors: Tensor, x: Tensor) -> Tensor:
    """Multiply each part by its own factor: [3, N, F] and [9, N, F] -> [9, N, F]."""
    pairs = zip(factors.unbind(0), x.split(PARTS), strict=True)
    return torch.cat([factor * part for factor, part in pairs])


def harmonics(u: Tensor) -> Tensor:
    """Return the components [9, E] of ``1 + A(u) + (u u^T - |u|^2 / 3)`` for vectors [3, E]."""
    x, y, z = u.unbind(0)
    third = (x * x + y * y + z * z) / 3
    symmetric = [x * x - third, x * y, x * z, y * y - third, y * z]
    return torch.stack([torch.ones_like(x), x, y, z, *symmetric])


def dot_parts(a: Tensor, b: Tensor) -> Tensor:
    """Return the sums of products of components, one per part: [9, N, F] twice -> [3, N, F]."""
    return torch.stack([part.sum(0) for part in (a * b).split(PARTS)])


def part_norms(x: Tensor) -> Tensor:
    """Return the squared Frobenius norms of the parts: [9, N, F] -> [3, N, F]."""
    return dot_parts(x, norm_gradients(x)) / 2


def norm_gradients(x: Tensor) -> Tensor:
    """Return the derivatives of the part norms by the components: [9, N, F] -> [9, N, F]."""
    i, a0, a1, a2, s00, s01, s02, s11, s12 = x.unbind(0)
    symmetric = [4 * s00 + 2 * s11, 4 * s01, 4 * s02, 4 * s11 + 2 * s00, 4 * s12]
    return torch.stack([6 * i, 4 * a0, 4 * a1, 4 * a2, *symmetric])


def inverse_norm(x: Tensor) -> Tensor:
    """Return ``1 / (|x|^2 + 1)``: [9, N, F] -> [N, F]."""
    return 1 / (part_norms(x).sum(0) + 1)


def normalize_backward(grad: Tensor, x: Tensor, inverse: Tensor) -> Tensor:
    """Return the gradient of x, given that of ``x inverse`` with ``inverse = inverse_norm(x)``."""
    along = (grad * x).sum(0) * inverse * inverse
    return inverse * grad - along * norm_gradients(x)


def square_backward(grad: Tensor, d: Tensor) -> Tensor:
    """Return the gradient of d, given that of ``decompose(D D)``."""
    g, t = decompose_adjoint(grad), compose(d).transpose(0, 1)
    return compose_adjoint(matmul(g, t) + matmul(t, g))


def map_parts(x: Tensor, weight: SplitWeight) -> Tensor:
    """Map each part by its own weights [3, out, in]: [9, N, in] -> [9, N, out]."""
    pairs = zip(x.split(PARTS), weight.weight.unbind(0), strict=True)
    return torch.cat([part @ w.T for part, w in pairs])


def sum_at_receivers(values: Tensor, receivers: Tensor, n_atoms: int) -> Tensor:
    """Sum rows [E, F] of ascending receivers [E] to [N, F], with the same bits in each run."""
    if values.device.type == "cpu":
        zeros = values.new_zeros(n_atoms, *values.shape[1:])
        return zeros.index_add(0, receivers, values)
    lengths = torch.bincount(receivers, minlength=n_atoms)  # index_add uses atomics on a GPU
    return torch.segment_reduce(values, "sum", lengths=lengths, axis=0, initial=0)
