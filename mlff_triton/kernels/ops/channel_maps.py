"""Linear maps of the channels of packed 3x3 tensors, with one weight per part.

    y_c = x_c W_l^T      for the components c of part l, l^2 to (l + 1)^2 - 1

Float32 tensors of many atoms are multiplied as float16 halves on tensor cores; see
`mlff_triton.kernels.numerics.split`. The gradient of the tensors is another such map, and the
gradient of the weights is a sum over atoms and components. Each is a derivative of the others.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.errors import InputError
from mlff_triton.kernels.common.checks import check_floats, check_shape
from mlff_triton.kernels.common.operators import needed_gradients, operator, saved_inputs
from mlff_triton.kernels.numerics.operands import split_columns
from mlff_triton.kernels.numerics.product import exact_precision, load, multiply
from mlff_triton.kernels.ops.reference import channel_maps as reference
from mlff_triton.kernels.ops.weight_gradient import launch_weight_gradient

_ROWS, _COLUMNS, _INNER = 64, 128, 32
_MANY_ATOMS = 256  # enough tiles to occupy half of a large GPU


@triton.jit
def _channel_maps_fwd_kernel(
    x_ptr,
    halves_ptr,
    units_ptr,
    y_ptr,
    n_atoms,
    n_out,
    n_in,
    component_stride,
    atom_stride,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Write y [9, n_atoms, n_out] of x [9, n_atoms, n_in], which has the strides given.

    Weights are halves [3, 2, n_in, n_out] with units [3, n_out]. Grid: (tiles, components).
    """
    component = tl.program_id(1)
    part = tl.where(component > 3, 2, tl.minimum(component, 1))
    tiles_n = tl.cdiv(n_out, N)
    row = (tl.program_id(0) // tiles_n).to(tl.int64) * M + tl.arange(0, M)[:, None]
    column = tl.program_id(0) % tiles_n * N + tl.arange(0, N)[None, :]
    x_ptr += component.to(tl.int64) * component_stride
    halves_ptr += part * 2 * n_in * n_out

    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, n_in, K):
        k = start + tl.arange(0, K)
        x = tl.load(
            x_ptr + row * atom_stride + k[None, :],
            (row < n_atoms) & (k < n_in)[None, :],
            other=0.0,
        )  # [M, K]
        weights = halves_ptr + k[:, None] * n_out + column
        inside = (k < n_in)[:, None] & (column < n_out)
        weight = load(weights, inside, n_in, n_out, "halves")  # [K, N]
        acc = multiply(x, weight, acc, "halves")

    acc *= tl.load(units_ptr + part * n_out + column, column < n_out, other=0.0)
    y_ptr += (component.to(tl.int64) * n_atoms + row) * n_out + column
    tl.store(y_ptr, acc, (row < n_atoms) & (column < n_out))


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, weights = saved_inputs(ctx)
    needed = needed_gradients(ctx)
    grad_x = _channel_maps(grad, weights.mT) if needed[0] else None
    return grad_x, _weight_gradients(grad, x) if needed[1] else None


@operator(
    "channel_maps",
    outputs=lambda x, weights: x.new_empty(9, x.shape[1], weights.shape[1]),
    differentiate=_gradients,
)
def _channel_maps(x: Tensor, weights: Tensor) -> Tensor:
    if x.stride(2) != 1:
        x = x.contiguous()
    (_, n_atoms, n_in), n_out = x.shape, weights.shape[1]
    y = x.new_empty(9, n_atoms, n_out)
    if y.numel():
        halves, units = split_columns(weights.mT)
        columns = min(_COLUMNS, max(16, triton.next_power_of_2(n_out)))
        tiles = triton.cdiv(n_atoms, _ROWS) * triton.cdiv(n_out, columns)
        with torch.cuda.device_of(x):
            _channel_maps_fwd_kernel[(tiles, 9)](
                x,
                halves,
                units,
                y,
                n_atoms,
                n_out,
                n_in,
                x.stride(0),
                x.stride(1),
                M=_ROWS,
                N=columns,
                K=_INNER,
                num_warps=4,
            )
    return y


def _gradients_of_weight_gradients(ctx: Any, change: Tensor) -> tuple[Tensor | None, Tensor | None]:
    grad, x = saved_inputs(ctx)
    needed = needed_gradients(ctx)
    of_grad = _channel_maps(x, change) if needed[0] else None
    return of_grad, _channel_maps(grad, change.mT) if needed[1] else None


@operator(
    "channel_maps_backward_weights",
    outputs=lambda grad, x: x.new_empty(3, grad.shape[2], x.shape[2]),
    differentiate=_gradients_of_weight_gradients,
)
def _weight_gradients(grad: Tensor, x: Tensor) -> Tensor:
    return launch_weight_gradient(grad, x)[0]


def channel_maps(x: Tensor, weights: Tensor, precision: str | None = None) -> Tensor:
    """Map the channels of 3x3 tensors linearly, with one weight per part; differentiable twice.

    Parameters
    ----------
    x : [9, N, K]
        Packed components, as in `mlff_triton.model.irreps`; float32 or float64.
    weights : [3, F, K]
        Weights of the identity, the skew and the symmetric part, as in `torch.nn.Linear`.
    precision : {"halves", "torch"}
        "halves" multiplies float32 values as float16 halves, with the precision of float32, and
        "torch" with `torch.bmm`. By default "halves" for float32 and 256 atoms or more on NVIDIA
        GPUs.

    Returns
    -------
    [9, N, F]
        Mapped tensors.

    Raises
    ------
    InputError
        If shapes, dtypes or devices do not fit together, or the precision is unknown or "halves"
        for float64.
    BackendError
        If the tensors are not on a GPU.

    Examples
    --------
    >>> x, weights = torch.ones(9, 2, 4, device="cuda"), torch.ones(3, 5, 4, device="cuda")
    >>> channel_maps(x, weights)[0, 0].tolist()
    [4.0, 4.0, 4.0, 4.0, 4.0]
    """
    check_shape("x", x, (9, "N", "K"))
    check_shape("weights", weights, (3, "F", x.shape[2]))
    check_floats(x=x, weights=weights)
    if precision is None:
        fast = exact_precision(x) == "tf32x3" and x.shape[1] >= _MANY_ATOMS
        precision = "halves" if fast else "torch"
    if precision == "torch":
        return reference.channel_maps(x, weights)
    if precision != "halves":
        raise InputError(f"precision={precision!r} is unknown: use halves or torch")
    if x.dtype != torch.float32:
        raise InputError(f"halves are those of float32, not of {x.dtype}: use precision='torch'")
    mapped: Tensor = _channel_maps(x, weights)
    return mapped
