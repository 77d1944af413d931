"""Tensor product of messages with the receivers' tensors.

Arguments and results are those of `mlff_triton.kernels.tensornet2.reference.normalized_product`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mlff_triton.kernels.common.cpu.compilation import loop, run
from mlff_triton.kernels.common.cpu.tensors import (
    add,
    compose,
    decompose,
    load_wide,
    matmul,
    norm,
    scale,
    store_wide,
)
from mlff_triton.kernels.common.cpu.vectors import lanes_of


def normalized_product(y: Tensor, message: Tensor, group: str) -> Tensor:
    """Multiply tensors with messages, both [9, N, F], and normalize the products."""
    out, lanes = torch.empty_like(message), lanes_of(y.shape[2], y.element_size())
    run(_normalized_product, message.shape[1], y, message, group == "O(3)", lanes, out)
    return out


@loop
def _normalized_product(y, message, is_symmetric, lanes, out, first, last):
    one, half = y.dtype.type(1), y.dtype.type(0.5)
    for i in range(first, last):
        for f in range(0, y.shape[2], len(lanes)):
            a, b = compose(load_wide(y, i, f, lanes)), compose(load_wide(message, i, f, lanes))
            full = matmul(a, b)
            full = add(full, matmul(b, a) if is_symmetric else full)
            product = decompose(full, half)
            store_wide(out, i, f, scale(one / (norm(product) + one), product))
