"""SwiGLU transitions of pairs or tokens, in plain PyTorch.

    x <- x + D (silu(G y) (U y))      y = norm(x)      silu(u) = u sigmoid(u)

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithm 11 of the supplement.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import layer_norm, linear, silu

from mlff_triton.kernels.pairs.types import TransitionWeights


def transition_(x: Tensor, weights: TransitionWeights) -> Tensor:
    """Compute `mlff_triton.kernels.pairs.transition.transition_`."""
    return x.add_(transition_update(x, weights))


def transition_update(x: Tensor, weights: TransitionWeights) -> Tensor:
    """Return the update that `transition_` adds."""
    norm, gate, up, down = weights
    y = layer_norm(x, x.shape[-1:], *norm)
    return linear(silu(linear(y, gate)) * linear(y, up), down)
