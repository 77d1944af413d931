"""Language heads: a linear layer, an activation, a normalization, and logits of all tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.encoders.encoder import Linear, Norm
from mlff_triton.kernels.common.reference import activations
from mlff_triton.kernels.types.top_logit import TopLogit, largest

if TYPE_CHECKING:
    from mlff_triton.kernels.transformer.token_linear import Moments, TokenLinear


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
            from mlff_triton.bio.encoders.fused import folded

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
        """Logits [..., V] of hidden states [..., C], of their dtype.

        Kernels round them to that alone, as logits of half precision are often equal.
        """
        if self._plain is not None:
            dense, norm, decoder = self._plain
            x = hidden.to(self._dtype)
            logits = decoder(norm(activations.activate(dense(x), self._activation)))
        else:
            from mlff_triton.kernels.transformer.token_linear import token_linear

            rows, last, moments = self._before_last(hidden)
            logits = token_linear(rows, last, moments=moments, dtype=hidden.dtype).x
            logits = logits.unflatten(0, hidden.shape[:-1])
        return logits.to(hidden.dtype)

    def top(self, hidden: Tensor) -> TopLogit:
        """The largest logit [...] of hidden states [..., C], of their dtype, and where it is.

        Kernels compare logits before these are rounded to half precision.
        """
        if self._plain is not None:
            return largest(self(hidden))
        from mlff_triton.kernels.transformer.top_logit import top_logit

        rows, last, moments = self._before_last(hidden)
        index, logit = top_logit(rows, last, moments=moments)
        places = hidden.shape[:-1]
        return TopLogit(index.view(places), logit.to(hidden.dtype).view(places))

    def _before_last(self, hidden: Tensor) -> tuple[Tensor, TokenLinear, Moments]:
        """What the kernels of the last layer take."""
        from mlff_triton.kernels.transformer.token_linear import Moments, token_linear

        assert self._fused is not None
        inner, last = self._fused
        x = hidden.to(self._dtype).contiguous().flatten(0, -2)
        rows, sums = token_linear(x, inner, activation=self._activation, with_moments=True)
        assert sums is not None
        return rows, last, Moments(sums, self._eps)
