"""Tensor product of messages with the receivers' tensors, normalized.

    P = Y M + M Y  or  2 Y M      out = P / (|P|^2 + 1)

for O(3) or SO(3): https://arxiv.org/abs/2306.06482, eqs. 11 and 12. The adjoint is
`mlff_triton.kernels.tensornet.interaction.product_backward`, with charge factors of one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlff_triton.kernels.common.checks import check_device
from mlff_triton.kernels.common.early_launch import wait_for_previous
from mlff_triton.kernels.common.irreps import (
    add,
    compose,
    decompose,
    inverse_norm,
    load_tensor,
    matmul,
    store_tensor,
    stride_of,
    times,
)
from mlff_triton.kernels.tensornet.launch_sizes import other_rows
from mlff_triton.kernels.tensornet.tile_launch import launch_tiles


@triton.jit
def _normalized_product_kernel(
    message_ptr,
    y_ptr,
    product_ptr,
    n_atoms,
    n_rows,
    F: tl.constexpr,
    GROUP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    EARLY_LAUNCH: tl.constexpr,
):
    """Multiply and normalize tensors. Grid: one program per M atoms and N channels.

    Reads ``y[9, N, F]`` and ``message[9, N, F]``. Writes ``product[9, N, F]``. Unless ``n_rows`` is
    None, ``y`` has that many rows instead.
    """
    wait_for_previous(EARLY_LAUNCH)
    atoms = (tl.program_id(0) * M + tl.arange(0, M)).to(tl.int64)[:, None]
    channels = tl.program_id(1) * N + tl.arange(0, N)[None, :]
    offset, inside = atoms * F + channels, atoms < n_atoms
    stride = tl.cast(n_atoms, tl.int64) * F
    a = compose(load_tensor(y_ptr + offset, stride_of(n_rows, n_atoms, F), inside))
    b = compose(load_tensor(message_ptr + offset, stride, inside))
    ab = matmul(a, b)
    product = decompose(add(ab, matmul(b, a))) if GROUP == "O(3)" else times(2, decompose(ab))
    store_tensor(product_ptr + offset, stride, times(inverse_norm(product), product), inside)


def normalized_product(y: Tensor, message: Tensor, group: str) -> Tensor:
    """Multiply tensors with messages, and normalize the products.

    Parameters
    ----------
    y, message : [9, M, F], [9, N, F]
        Factors, of which the first N count.
    group : {"O(3)", "SO(3)"}
        Tensor product.

    Returns
    -------
    [9, N, F]
    """
    check_device(y)
    product, n_rows = torch.empty_like(message), other_rows(y.shape[1], message.shape[1])
    launch_tiles(_normalized_product_kernel, message, y, product, n_rows=n_rows, GROUP=group)
    return product
