"""Tensor product of messages with the receivers' tensors, in plain PyTorch.

Arguments and results are those of `mlff_triton.kernels.tensornet2.normalized_product`.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.common.reference.tensors import compose, decompose, inverse_norm, matmul


def normalized_product(y: Tensor, message: Tensor, group: str) -> Tensor:
    """Multiply tensors with messages, both [9, N, F], and normalize the products."""
    a, b = compose(y[:, : message.shape[1]]), compose(message)
    full = matmul(a, b) + matmul(b, a) if group == "O(3)" else 2 * matmul(a, b)
    product = decompose(full)
    return product * inverse_norm(product)
