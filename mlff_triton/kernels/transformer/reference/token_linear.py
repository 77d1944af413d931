"""Linear layers of Transformer encoders over packed rows, in plain PyTorch.

    y = rotate(activation(norm(x) W^T + b) + norm(residual))

Everything but the product is optional.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.ops.reference.layer_norm import layer_norm
from mlff_triton.kernels.ops.reference.linear import linear
from mlff_triton.kernels.transformer.reference.rotary import rotary as rotate
from mlff_triton.kernels.types.norm import Norm


def token_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: Norm | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
    residual_norm: Norm | None = None,
    rotary: tuple[Tensor, Tensor, Tensor, int] | None = None,
) -> Tensor:
    """Compute `mlff_triton.kernels.transformer.token_linear.token_linear` for all rows.

    ``rotary`` holds the arguments of `mlff_triton.kernels.transformer.reference.rotary.rotary`
    after the first.
    """
    if norm is not None:
        x = layer_norm(x, *norm)
    if residual is not None and residual_norm is not None:
        residual = layer_norm(residual, *residual_norm)
    y = linear(x, weight, bias, activation, residual=residual)
    return y if rotary is None else rotate(y, *rotary)
