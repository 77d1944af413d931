"""Gradients of ``y = activation(z) s`` with a scale s per row, and second derivatives.

    gz = g s activation'(z) + more      gs = sum_F g activation(z)

where ``more`` are other gradients of z. Second derivatives are gradients of ``<dz, gz> + <ds, gs>``
for changes dz and ds:

    gg = dz s activation'(z) + ds activation(z)
    gz = g (dz s activation''(z) + ds activation'(z))       gs = sum_F dz g activation'(z)

Each program owns a few rows, so results are reproducible to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.activations import (
    activate,
    activate_curvature,
    activate_derivative,
)
from mlff_triton.kernels.common.dense import accumulator
from mlff_triton.kernels.common.operators import needed_gradients, operator

_ROWS, _COLUMNS = 8, 128


@triton.jit
def count_rows(rows_ptr, n_rows):
    """Return the number of rows that matter: all rows, or the given number."""
    live = n_rows
    if rows_ptr is not None:
        live = tl.minimum(tl.load(rows_ptr).to(tl.int32), n_rows)
    return live


@triton.jit
def _activation_slopes_kernel(
    grad_ptr,
    z_ptr,
    scale_ptr,
    more_ptr,
    rows_ptr,
    out_ptr,
    grad_scale_ptr,
    n_rows,
    n_columns,
    ACTIVATION: tl.constexpr,
    COMPUTE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write gz [n_rows, n_columns], and gs [n_rows] if wanted.

    g, z and more, which is optional, are [n_rows, n_columns], and the optional scale is [n_rows].
    All but the first ``rows`` rows are zero, if these are given. Grid: (row blocks,).
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = row < count_rows(rows_ptr, n_rows)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + row, inside, other=0.0).to(COMPUTE)
    grad_scale = tl.zeros((ROWS, COLUMNS), COMPUTE)
    for start in range(0, n_columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :]
        mask = inside & (column < n_columns)
        stored = (row < n_rows) & (column < n_columns)
        offsets = row * n_columns + column
        grad = tl.load(grad_ptr + offsets, mask, other=0.0).to(COMPUTE)
        z = tl.load(z_ptr + offsets, mask, other=0.0).to(COMPUTE)

        out = grad * activate_derivative(z, ACTIVATION)
        if scale_ptr is not None:
            out *= scale
        if more_ptr is not None:
            out += tl.load(more_ptr + offsets, mask, other=0.0).to(COMPUTE)
        if grad_scale_ptr is not None:
            grad_scale += grad * activate(z, ACTIVATION)
        tl.store(out_ptr + offsets, out.to(out_ptr.dtype.element_ty), stored)
    if grad_scale_ptr is not None:
        total = tl.sum(grad_scale, 1, keep_dims=True)
        tl.store(grad_scale_ptr + row, total.to(grad_scale_ptr.dtype.element_ty), row < n_rows)


@triton.jit
def _activation_slopes_bwd_kernel(
    change_ptr,
    change_scale_ptr,
    grad_ptr,
    z_ptr,
    scale_ptr,
    rows_ptr,
    grad_grad_ptr,
    grad_z_ptr,
    grad_scale_ptr,
    n_rows,
    n_columns,
    ACTIVATION: tl.constexpr,
    COMPUTE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write gg and gz [n_rows, n_columns], and gs [n_rows] if wanted.

    dz, g and z are [n_rows, n_columns], and ds and the scale, which are optional, [n_rows]. All but
    the first ``rows`` rows are zero, if these are given. Grid: (row blocks,).
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = row < count_rows(rows_ptr, n_rows)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + row, inside, other=0.0).to(COMPUTE)
    if change_scale_ptr is not None:
        change_scale = tl.load(change_scale_ptr + row, inside, other=0.0).to(COMPUTE)
    grad_scale = tl.zeros((ROWS, COLUMNS), COMPUTE)
    for start in range(0, n_columns, COLUMNS):
        column = start + tl.arange(0, COLUMNS)[None, :]
        mask = inside & (column < n_columns)
        stored = (row < n_rows) & (column < n_columns)
        offsets = row * n_columns + column
        change = tl.load(change_ptr + offsets, mask, other=0.0).to(COMPUTE)
        grad = tl.load(grad_ptr + offsets, mask, other=0.0).to(COMPUTE)
        z = tl.load(z_ptr + offsets, mask, other=0.0).to(COMPUTE)

        slope = activate_derivative(z, ACTIVATION)
        if grad_scale_ptr is not None:
            grad_scale += change * grad * slope
        if scale_ptr is not None:
            change *= scale
        grad_grad = change * slope
        grad_z = change * activate_curvature(z, ACTIVATION)
        if change_scale_ptr is not None:
            grad_grad += change_scale * activate(z, ACTIVATION)
            grad_z += change_scale * slope
        grad_z *= grad
        tl.store(grad_grad_ptr + offsets, grad_grad.to(grad_grad_ptr.dtype.element_ty), stored)
        tl.store(grad_z_ptr + offsets, grad_z.to(grad_z_ptr.dtype.element_ty), stored)
    if grad_scale_ptr is not None:
        total = tl.sum(grad_scale, 1, keep_dims=True)
        tl.store(grad_scale_ptr + row, total.to(grad_scale_ptr.dtype.element_ty), row < n_rows)


def _options(z: Tensor, activation: str) -> dict[str, Any]:
    return {
        "ACTIVATION": activation,
        "COMPUTE": accumulator(z),
        "ROWS": _ROWS,
        "COLUMNS": _COLUMNS,
        "num_warps": 4,
    }


def _per_row(z: Tensor, wanted: bool) -> Tensor:
    """Return an uninitialized value per row, or none at all."""
    return z.new_empty(len(z) if wanted else 0)


def _empty_slopes(grad: Tensor, z: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    del grad
    return torch.empty_like(z), _per_row(z, others[-1])


def _given(x: Tensor) -> Tensor | None:
    return x if len(x) else None


@operator(
    "activation_slopes_backward",
    outputs=lambda change, change_scale, grad, z, *others: (  # noqa: ARG005
        torch.empty_like(z),
        *_empty_slopes(grad, z, *others),
    ),
)
def _activation_slopes_backward(
    change: Tensor,
    change_scale: Tensor | None,
    grad: Tensor,
    z: Tensor,
    scale: Tensor | None,
    rows: Tensor | None,
    activation: str,
    with_scale: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_grad, grad_z = torch.empty_like(z), torch.empty_like(z)
    grad_scale = _per_row(z, with_scale)
    if z.numel():
        with torch.cuda.device_of(z):
            _activation_slopes_bwd_kernel[(triton.cdiv(len(z), _ROWS),)](
                change.contiguous(),
                None if change_scale is None else change_scale.contiguous(),
                grad.contiguous(),
                z,
                None if scale is None else scale.contiguous(),
                rows,
                grad_grad,
                grad_z,
                _given(grad_scale),
                *z.shape,
                **_options(z, activation),
            )
    elif with_scale:
        grad_scale.zero_()
    return grad_grad, grad_z, grad_scale


def _save(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    del output
    grad, z, scale, _, rows, ctx.activation, _ = inputs
    ctx.save_for_backward(grad, z, scale, rows)
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, change: Tensor | None, change_scale: Tensor | None
) -> tuple[Tensor | None, ...]:
    grad, z, scale, rows = ctx.saved_tensors
    if change is None and change_scale is None:
        return ()
    needed = needed_gradients(ctx)
    with_scale = scale is not None and needed[2]
    grad_grad, grad_z, grad_scale = _activation_slopes_backward(
        torch.zeros_like(z) if change is None else change,
        change_scale,
        grad,
        z,
        scale,
        rows,
        ctx.activation,
        with_scale,
    )
    more = change if needed[3] else None
    return grad_grad, grad_z, grad_scale if with_scale else None, more


@operator("activation_slopes", outputs=_empty_slopes, differentiate=_gradients, saves=_save)
def activation_slopes(
    grad: Tensor,
    z: Tensor,
    scale: Tensor | None,
    more: Tensor | None,
    rows: Tensor | None,
    activation: str,
    with_scale: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients gz [M, N] and, if wanted, gs [M]; differentiable once more.

    Parameters
    ----------
    grad, z : [M, N]
        Gradients of y, and values before the activation.
    scale : [M], optional
        Scale of each row.
    more : [M, N], optional
        Other gradients of z, which are added.
    rows : int64 or int32 [], optional
        Number of rows that matter; gradients of the others are zero.
    activation : str
        Name as in `mlff_triton.kernels.ops.linear.linear`.
    with_scale : bool
        If False, there are no gradients of scales, and the second tensor is empty.
    """
    out, grad_scale = torch.empty_like(z), _per_row(z, with_scale)
    if z.numel():
        with torch.cuda.device_of(z):
            _activation_slopes_kernel[(triton.cdiv(len(z), _ROWS),)](
                grad.contiguous(),
                z,
                None if scale is None else scale.contiguous(),
                None if more is None else more.contiguous(),
                rows,
                out,
                _given(grad_scale),
                *z.shape,
                **_options(z, activation),
            )
    elif with_scale:
        grad_scale.zero_()
    return out, grad_scale
