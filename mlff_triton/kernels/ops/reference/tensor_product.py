"""TensorNet's product of node and message tensors, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.ops.reference.decomposition import compose, decompose


def tensor_product(
    y: Tensor,
    message: Tensor,
    charge_factor: Tensor | None = None,
    group: str = "O(3)",
    normalize: bool = True,
) -> Tensor:
    """Compute ``P / (|P|_F^2 + 1)`` with ``P = c (Y M + M Y)`` for O(3), ``P = 2 Y M`` for SO(3).

    G. Simeon and G. De Fabritiis, NeurIPS 2023, https://arxiv.org/abs/2306.06482, section 3; the
    charge factor c is that of TorchMD-NET 3.1.

    Parameters and result are those of `mlff_triton.kernels.ops.tensor_product.tensor_product`.
    """
    full = y.ndim == 4
    a, b = ((t if full else compose(t)).permute(0, 3, 1, 2) for t in (y, message))  # [N, F, 3, 3]
    product = a @ b + b @ a if group == "O(3)" else 2 * (a @ b)
    if charge_factor is not None:
        product = charge_factor[:, None, None, None] * product
    if normalize:
        product = product / (product.square().sum((-2, -1), keepdim=True) + 1)
    product = product.permute(0, 2, 3, 1)
    return product if full else decompose(product)
