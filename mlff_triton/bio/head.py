"""Language heads: a linear layer, an activation, a normalization, and logits of all tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.encoder import Linear, Norm
from mlff_triton.kernels.reference import _activations


class HeadWeights(NamedTuple):
    """The parts of a head, in their order."""

    dense: Linear
    activation: str
    norm: Norm
    decoder: Linear


class Head:
    """Hidden states to logits.

    Parameters
    ----------
    weights : HeadWeights
        Of any dtype.
    dtype : torch.dtype
        What to compute in.
    backend : {"triton", "torch"}
        With what.
    """

    def __init__(self, weights: HeadWeights, dtype: torch.dtype, backend: str | None) -> None:
        self._dtype, self._activation = dtype, weights.activation
        self._eps = weights.norm.eps
        self._plain = self._fused = None
        if backend == "triton":
            from mlff_triton.bio.fused import folded

            self._fused = (
                folded(weights.dense, None, dtype),
                folded(weights.decoder, weights.norm, dtype),
            )
        else:
            self._plain = (
                weights.dense.to(dtype),
                weights.norm.to(dtype),
                weights.decoder.to(dtype),
            )

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., C], of their dtype."""
        x = hidden.to(self._dtype).contiguous()
        if self._plain is not None:
            dense, norm, decoder = self._plain
            logits = decoder(norm(_activations.activate(dense(x), self._activation)))
        else:
            from mlff_triton.kernels.token_linear import Moments, token_linear

            assert self._fused is not None
            inner, last = self._fused
            rows, sums = token_linear(
                x.flatten(0, -2), inner, activation=self._activation, with_moments=True
            )
            assert sums is not None
            moments = Moments(sums, self._eps)
            logits = token_linear(rows, last, moments=moments).x.unflatten(0, x.shape[:-1])
        return logits.to(hidden.dtype)
