"""Choice of operators for Enformer and AlphaGenome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.nn import functional

from mlff_triton.bio.core.operators import import_operators

_MODULES = {  # of operators that share one
    "sequence_windows": "convolution",
    "paired_rows": "attention_pool",
    "relative_attention": "attention",
    "capped_attention": "attention",
    "rotated_sites": "pair_junctions",
    "junction_reads": "pair_junctions",
    "binned_linear": "tracks",
}


def genomic_operators(backend: str | None, names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """Import operators on genomes of "triton" or "torch", with `linear` among them."""
    own = (name for name in names if name != "linear")
    found = import_operators("genomics", backend, own, _MODULES)
    return found | {"linear": linear if backend == "torch" else fast_linear}


def linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Apply a linear map to rows [R, K], and relu or nothing."""
    y = functional.linear(x, weight, bias)
    return y.relu_() if activation == "relu" else y


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Compute `linear` by a kernel if it supports the rows and the GPU."""
    from mlff_triton.kernels.transformer import wide_linear as wide

    if wide.fits(x, weight):
        return wide.wide_linear(x, weight, bias, None, activation=activation)
    return linear(x, weight, bias, activation)
