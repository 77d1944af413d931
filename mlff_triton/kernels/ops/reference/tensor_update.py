"""Updates of 3x3 tensors by a change and its square, in plain PyTorch.

    Y = X + D + c D D

at the end of TensorNet's interaction layers: G. Simeon and G. De Fabritiis, NeurIPS 2023,
https://arxiv.org/abs/2306.06482, section 3. The charge factor c is that of TorchMD-NET 3.1.
"""

from __future__ import annotations

from torch import Tensor

from mlff_triton.kernels.ops.reference.decomposition import compose, decompose


def tensor_update(x: Tensor, delta: Tensor, charge_factor: Tensor) -> Tensor:
    """Compute `mlff_triton.kernels.ops.tensor_update.tensor_update`."""
    matrices = compose(delta).movedim(3, 1)  # [N, F, 3, 3]
    square = (charge_factor[:, None, None, None] * (matrices @ matrices)).movedim(1, 3)
    return x + delta + decompose(square)
