"""Weights of the convolutions and embeddings of AlphaGenome, laid out for the operators.

Standardized weights are computed once. Normalizations are factors and shifts of the results that
they normalize, or are folded into the linear map that follows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from mlff_triton.bio.core.weights import converted, exact
from mlff_triton.kernels.genomics.types import ALIGNMENT, Activation


class Convolution(NamedTuple):
    """A convolution after normalization and activation.

    Attributes
    ----------
    activation : Activation
        Normalization of its input.
    weight, bias : [N, T, K], [N]
        Weights of T taps.
    """

    activation: Activation
    weight: Tensor
    bias: Tensor


class UpBlock(NamedTuple):
    """A block of the decoder.

    Attributes
    ----------
    first, skip, last : Convolution
        Convolution of the input, map of the encoder's rows, and convolution of their sum.
    scale : float
        Factor of the input.
    """

    first: Convolution
    skip: Convolution
    last: Convolution
    scale: float


class Embedder(NamedTuple):
    """A map to embeddings, including the normalization of its result, for O organisms.

    Attributes
    ----------
    weight : [N, K]
        Map of rows.
    skip : [N, L] or None
        Map of embeddings of bins.
    shift : [O, N]
        Bias.
    """

    weight: Tensor
    skip: Tensor | None
    shift: Tensor


class ConvolutionWeights(NamedTuple):
    """Weights outside of the transformer and the heads.

    Attributes
    ----------
    stem, stem_bias : [C, 1, W], [C]
        Map of windows of the sequence.
    taps : int
        Number of positions in a window.
    embedder : Convolution
        Convolution of the embedded sequence.
    down : list of tuple of two Convolution
        Blocks of the encoder.
    up : list of UpBlock
        Blocks of the decoder.
    bins, bases : Embedder
        Maps to embeddings of bins of 128 positions, and of positions.
    """

    stem: Tensor
    stem_bias: Tensor
    taps: int
    embedder: Convolution
    down: list[tuple[Convolution, Convolution]]
    up: list[UpBlock]
    bins: Embedder
    bases: Embedder

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> ConvolutionWeights:
        """Read the weights of a model, in a dtype."""
        encoder, decoder = model.encoder, model.decoder
        stem = encoder.dna_embedder.conv1
        weight = exact(stem.weight).transpose(1, 2)
        n_in = weight[0].numel()
        read = cls(
            stem=pad(weight.flatten(1), (0, -n_in % ALIGNMENT))[:, None],
            stem_bias=exact(stem.bias),
            taps=weight.shape[1],
            embedder=_convolution(encoder.dna_embedder.block),
            down=[(_convolution(b.block1), _convolution(b.block2)) for b in encoder.down_blocks],
            up=[
                UpBlock(
                    _convolution(block.conv_in),
                    _convolution(block.pointwise),
                    _convolution(block.conv_out),
                    float(block.residual_scale),
                )
                for block in decoder.up_blocks
            ],
            bins=_embedder(model.embedder_128bp),
            bases=_embedder(model.embedder_1bp),
        )
        return converted(read, dtype)


def normalization(norm: Any) -> tuple[Tensor, Tensor]:
    """Return the factor and the shift of a normalization by a running variance, in float64."""
    return exact(norm.weight) * (exact(norm.running_var) + norm.eps).rsqrt(), exact(norm.bias)


def _convolution(block: Any) -> Convolution:
    scale, shift = normalization(block.norm)
    conv = block.conv
    weight = _standardized(conv) if hasattr(conv, "scale") else exact(conv.weight)
    return Convolution(Activation(scale, shift), weight.transpose(1, 2), exact(conv.bias))


def _standardized(conv: Any) -> Tensor:
    """Return weights with a mean of zero and a fixed variance, times the learned scale."""
    weight = exact(conv.weight)
    fan_in: int = conv.in_channels * conv.kernel_size[0]
    variance, mean = torch.var_mean(weight, (1, 2), correction=0, keepdim=True)
    return (weight - mean) * (variance * fan_in).clamp(min=1e-4).rsqrt() * exact(conv.scale)


def _embedder(embedder: Any) -> Embedder:
    scale, shift = normalization(embedder.norm)
    project, skip = embedder.project_in, embedder.project_skip
    bias = exact(project.bias) * scale + shift
    return Embedder(
        scale[:, None] * exact(project.weight)[:, :, 0],
        None if skip is None else scale[:, None] * exact(skip.weight)[:, :, 0],
        exact(embedder.organism_embed.weight) + bias,
    )
