"""Decomposition of 3x3 tensors into their parts ``X = I 1 + A(a) + S``, and the inverse.

    I = tr X / 3        A = (X - X^T) / 2        S = (X + X^T) / 2 - I 1

G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, equation 1. All maps
are linear, and the adjoint of each is among the kernels below, which therefore also compute
derivatives of any order. The three projections are orthogonal and thus their own adjoints.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common import irreps
from mlff_triton.kernels.common.checks import check_floats, check_shape
from mlff_triton.kernels.common.irreps import (
    has_full_layout,
    launch_elements,
    load_nine,
    store_nine,
)
from mlff_triton.kernels.common.operators import operator


@triton.jit
def _pack_kernel(t_ptr, x_ptr, n_elements, channels, ADJOINT: tl.constexpr, BLOCK: tl.constexpr):
    """Write components x [9, N, F] of t [N, 3, 3, F]. Grid: (blocks of the N F elements,)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    t = load_nine(t_ptr, index, mask, n_elements, channels, FULL=True)
    x = irreps.compose_adjoint(t) if ADJOINT else irreps.decompose(t)

    store_nine(x_ptr, x, index, mask, n_elements, channels, FULL=False)


@triton.jit
def _unpack_kernel(x_ptr, t_ptr, n_elements, channels, ADJOINT: tl.constexpr, BLOCK: tl.constexpr):
    """Write tensors t [N, 3, 3, F] of components x [9, N, F]. Grid: (blocks of N F elements,)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    x = load_nine(x_ptr, index, mask, n_elements, channels, FULL=False)
    t = irreps.decompose_adjoint(x) if ADJOINT else irreps.compose(x)

    store_nine(t_ptr, t, index, mask, n_elements, channels, FULL=True)


@triton.jit
def _split_kernel(
    t_ptr, identity_ptr, skew_ptr, symmetric_ptr, n_elements, channels, BLOCK: tl.constexpr
):
    """Write the three parts of t, all [N, 3, 3, F]. Grid: (blocks of the N F elements,)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    t = load_nine(t_ptr, index, mask, n_elements, channels, FULL=True)

    i, a0, a1, a2, s00, s01, s02, s11, s12 = irreps.decompose(t)
    o = tl.zeros_like(i)
    identity = (i, o, o, o, i, o, o, o, i)
    skew = (o, -a2, a1, a2, o, -a0, -a1, a0, o)
    symmetric = (s00, s01, s02, s01, s11, s12, s02, s12, -s00 - s11)

    store_nine(identity_ptr, identity, index, mask, n_elements, channels, FULL=True)
    store_nine(skew_ptr, skew, index, mask, n_elements, channels, FULL=True)
    store_nine(symmetric_ptr, symmetric, index, mask, n_elements, channels, FULL=True)


@triton.jit
def _join_kernel(
    identity_ptr, skew_ptr, symmetric_ptr, t_ptr, n_elements, channels, BLOCK: tl.constexpr
):
    """Project three tensors, one to each part, and write the sum t, all [N, 3, 3, F].

    Grid: (blocks of the N F elements,).
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n_elements

    identity = load_nine(identity_ptr, index, mask, n_elements, channels, FULL=True)
    skew = load_nine(skew_ptr, index, mask, n_elements, channels, FULL=True)
    symmetric = load_nine(symmetric_ptr, index, mask, n_elements, channels, FULL=True)

    i, _, _, _, _, _, _, _, _ = irreps.decompose(identity)
    _, a0, a1, a2, _, _, _, _, _ = irreps.decompose(skew)
    _, _, _, _, s00, s01, s02, s11, s12 = irreps.decompose(symmetric)
    t = irreps.compose((i, a0, a1, a2, s00, s01, s02, s11, s12))

    store_nine(t_ptr, t, index, mask, n_elements, channels, FULL=True)


def _empty_packed(t: Tensor, adjoint: bool) -> Tensor:  # noqa: ARG001
    return t.new_empty(9, t.shape[0], t.shape[-1])


def _gradient_of_pack(grad: Tensor, adjoint: bool) -> Any:
    return _unpack(grad, not adjoint)


@operator("pack", outputs=_empty_packed, gradients=_gradient_of_pack, saves=("adjoint",))
def _pack(t: Tensor, adjoint: bool) -> Tensor:
    """Map [N, 3, 3, F] to components [9, N, F], or apply the adjoint of `_unpack`."""
    x = _empty_packed(t, adjoint)
    launch_elements(_pack_kernel, t, (t,), (x,), ADJOINT=adjoint)
    return x


def _empty_full(x: Tensor, adjoint: bool) -> Tensor:  # noqa: ARG001
    return x.new_empty(x.shape[1], 3, 3, x.shape[-1])


@operator(
    "unpack",
    outputs=_empty_full,
    gradients=lambda grad, adjoint: _pack(grad, not adjoint),
    saves=("adjoint",),
)
def _unpack(x: Tensor, adjoint: bool) -> Tensor:
    """Map components [9, N, F] to [N, 3, 3, F], or apply the adjoint of `_pack`."""
    t = _empty_full(x, adjoint)
    launch_elements(_unpack_kernel, x, (x,), (t,), ADJOINT=adjoint)
    return t


def _gradient_of_split(*grads: Tensor) -> Any:
    return _join(*grads)


@operator("split", outputs=("t", "t", "t"), gradients=_gradient_of_split, saves=())
def _split(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Project [N, 3, 3, F] to its three parts, [N, 3, 3, F] each."""
    parts = t.new_empty(t.shape), t.new_empty(t.shape), t.new_empty(t.shape)
    launch_elements(_split_kernel, t, (t,), parts)
    return parts


@operator("join", outputs="identity", gradients=_split, saves=())
def _join(identity: Tensor, skew: Tensor, symmetric: Tensor) -> Tensor:
    """Project three [N, 3, 3, F] to one part each and add them: the adjoint of `_split`."""
    t = identity.new_empty(identity.shape)
    launch_elements(_join_kernel, t, (identity, skew, symmetric), (t,))
    return t


def decompose(t: Tensor) -> Tensor:
    """Decompose 3x3 tensors into packed components.

    Parameters
    ----------
    t : [N, 3, 3, F]
        Full tensors; float32 or float64.

    Returns
    -------
    [9, N, F]
        Packed components, as in `mlff_triton.model.irreps`.

    Raises
    ------
    InputError
        If the shape or the dtype is not supported.
    BackendError
        If the tensor is not on a GPU.

    Examples
    --------
    >>> decompose(torch.eye(3, device="cuda").reshape(1, 3, 3, 1)).flatten().tolist()
    [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    _check("t", t, ("N", 3, 3, "F"))
    result: Tensor = _pack(t, False)
    return result


def compose(x: Tensor) -> Tensor:
    """Compose 3x3 tensors from packed components: the inverse of `decompose`.

    Parameters
    ----------
    x : [9, N, F]
        Packed components, as in `mlff_triton.model.irreps`; float32 or float64.

    Returns
    -------
    [N, 3, 3, F]
        Full tensors.

    Raises
    ------
    InputError
        If the shape or the dtype is not supported.
    BackendError
        If the tensor is not on a GPU.

    Examples
    --------
    >>> x = torch.randn(9, 5, 8, device="cuda")
    >>> torch.allclose(decompose(compose(x)), x, atol=1e-6)
    True
    """
    _check("x", x, (9, "N", "F"))
    result: Tensor = _unpack(x, False)
    return result


def decompose_tensor(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split 3x3 tensors into their three parts as full tensors.

    The operation and its layout are those of TorchMD-NET 2. To save memory, use `decompose`: it
    returns the same information in nine components instead of twenty-seven.

    Parameters
    ----------
    t : [N, 3, 3, F]
        Full tensors; float32 or float64.

    Returns
    -------
    tuple of three [N, 3, 3, F]
        The multiple of the identity, the skew and the symmetric traceless part; they sum to ``t``.

    Raises
    ------
    InputError
        If the shape or the dtype is not supported.
    BackendError
        If the tensor is not on a GPU.

    Examples
    --------
    >>> t = torch.randn(5, 3, 3, 8, device="cuda")
    >>> torch.allclose(sum(decompose_tensor(t)), t, atol=1e-6)
    True
    """
    _check("t", t, ("N", 3, 3, "F"))
    result: tuple[Tensor, Tensor, Tensor] = _split(t)
    return result


def _check(name: str, x: Tensor, shape: tuple[int | str, ...]) -> None:
    check_shape(name, x, shape)
    has_full_layout(name, x)
    check_floats(**{name: x})
