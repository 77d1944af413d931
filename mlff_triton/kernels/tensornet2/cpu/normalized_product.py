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
    load,
    matmul,
    norm,
    scale,
    store,
)


def normalized_product(y: Tensor, message: Tensor, group: str) -> Tensor:
    """Multiply tensors with messages, both [9, N, F], and normalize the products."""
    out = torch.empty_like(y)
    run(_normalized_product, y.shape[1], y, message, group == "O(3)", out)
    return out


@loop
def _normalized_product(y, message, is_symmetric, out, first, last):
    one, half = y.dtype.type(1), y.dtype.type(0.5)
    for i in range(first, last):
        for f in range(y.shape[2]):
            a, b = compose(load(y, i, f)), compose(load(message, i, f))
            full = matmul(a, b)
            full = add(full, matmul(b, a) if is_symmetric else full)
            product = decompose(full, half)
            store(out, i, f, scale(one / (norm(product) + one), product))
