"""Language heads: a linear layer, an activation, a normalization, and logits of all tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.models.encoders.weights import Linear, Norm
from mlff_triton.kernels.common.reference import activations
from mlff_triton.kernels.transformer.types import TopLogit, largest

if TYPE_CHECKING:
    from mlff_triton.kernels.transformer.token_linear import Moments, TokenLinear


class HeadWeights(NamedTuple):
    """Weights of a language head, in the order of their use."""

    dense: Linear
    activation: str
    norm: Norm
    decoder: Linear


class LanguageHead:
    """Maps hidden states to logits.

    Parameters
    ----------
    weights : HeadWeights
        Weights of any dtype.
    dtype : torch.dtype
        Dtype of the computation.
    backend : {"triton", "torch"}
        Backend of the computation.
    """

    def __init__(self, weights: HeadWeights, dtype: torch.dtype, backend: str | None) -> None:
        self._dtype, self._activation = dtype, weights.activation
        self._eps = weights.norm.eps
        self._plain = self._folded = None
        if backend == "triton":
            from mlff_triton.bio.models.encoders.packed_forward_triton import fold_norm

            self._folded = (
                fold_norm(weights.dense, None, dtype),
                fold_norm(weights.decoder, weights.norm, dtype),
            )
        else:
            self._plain = (
                weights.dense.to(dtype),
                weights.norm.to(dtype),
                weights.decoder.to(dtype),
            )

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., C], in the dtype of the hidden states.

        Kernels compute logits in full precision and round them only to that dtype, because logits
        in half precision are often equal.
        """
        if self._plain is not None:
            dense, norm, decoder = self._plain
            x = hidden.to(self._dtype)
            logits = decoder(norm(activations.activate(dense(x), self._activation)))
        else:
            from mlff_triton.kernels.transformer.token_linear import token_linear

            rows, last, moments = self._decoder_inputs(hidden)
            logits = token_linear(rows, last, moments=moments, dtype=hidden.dtype).x
            logits = logits.unflatten(0, hidden.shape[:-1])
        return logits.to(hidden.dtype)

    def top(self, hidden: Tensor) -> TopLogit:
        """Return the largest logit [...] of hidden states [..., C], in their dtype, and its index.

        Kernels compare logits before rounding them to half precision.
        """
        if self._plain is not None:
            return largest(self(hidden))
        from mlff_triton.kernels.transformer.top_logit import top_logit

        rows, last, moments = self._decoder_inputs(hidden)
        index, logit = top_logit(rows, last, moments=moments)
        shape = hidden.shape[:-1]
        return TopLogit(index.view(shape), logit.to(hidden.dtype).view(shape))

    def _decoder_inputs(self, hidden: Tensor) -> tuple[Tensor, TokenLinear, Moments]:
        """Return the inputs of the last linear layer's kernel: rows, weights and moments."""
        from mlff_triton.kernels.transformer.token_linear import Moments, token_linear

        assert self._folded is not None
        dense, decoder = self._folded
        x = hidden.to(self._dtype).contiguous().flatten(0, -2)
        rows, sums = token_linear(x, dense, activation=self._activation, with_moments=True)
        assert sums is not None
        return rows, decoder, Moments(sums, self._eps)
