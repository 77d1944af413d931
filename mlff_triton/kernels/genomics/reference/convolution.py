"""Convolutions along sequences, in plain PyTorch.

    y_s = b + sum_t W_t x_(s + t - (T - 1) // 2) + r residual_s
    activated = gelu(scale y + shift)          gelu(u) = u sigmoid(1.702 u)

Source: Ž. Avsec et al., "Effective gene expression prediction from sequence by integrating
long-range interactions", https://doi.org/10.1038/s41592-021-01252-x.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import conv1d, pad

from mlff_triton.kernels.common.reference import activations
from mlff_triton.kernels.genomics.types import Activated, Activation


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Normalize and activate rows [..., N], in the dtype of the normalization."""
    u = x.to(activation.scale.dtype) * activation.scale + activation.shift
    return activations.activate(u, "gelu_sigmoid").to(x.dtype)


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    residual: Tensor | None = None,
    residual_scale: float = 1.0,
    activation: Activation | None = None,
    with_rows: bool = True,
    out: Tensor | None = None,
) -> Activated:
    """Compute `mlff_triton.kernels.genomics.convolution.convolution`."""
    taps, length = weight.shape[1], x.shape[1]
    padded = pad(x.mT, ((taps - 1) // 2, taps // 2))
    y = conv1d(padded, weight.transpose(1, 2)).mT.to(bias.dtype) + bias
    if residual is not None:
        if residual.shape[1] != length:
            residual = residual.repeat_interleave(2, 1)
        y = y + residual_scale * pad(residual, (0, y.shape[2] - residual.shape[2]))
    activated = None if activation is None else activate(y, activation).to(x.dtype)
    if out is not None and activated is not None:
        activated = out.copy_(activated)
    return Activated(y.to(x.dtype) if with_rows else None, activated)


def sequence_windows(x: Tensor, taps: int, out: Tensor) -> None:
    """Compute `mlff_triton.kernels.genomics.convolution.sequence_windows`."""
    padded = pad(x.to(out.dtype), (0, 0, (taps - 1) // 2, taps // 2))
    windows = padded.unfold(1, taps, 1).mT.flatten(2)
    out.copy_(pad(windows, (0, out.shape[2] - windows.shape[2])))
