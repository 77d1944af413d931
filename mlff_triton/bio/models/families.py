"""Table of the model families that `mlff_triton.bio.accelerate` recognizes.

A new family is one more row of `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from torch import nn

from mlff_triton.bio.core.fast_forward import FastForward
from mlff_triton.bio.models.alpha_genome.adapter import AlphaGenomeForward
from mlff_triton.bio.models.boltz.adapter import BoltzBlockForward, BoltzMSAForward
from mlff_triton.bio.models.boltz.conditioning import BoltzConditioningForward
from mlff_triton.bio.models.boltz.diffusion import BoltzDiffusionForward
from mlff_triton.bio.models.boltz.score import Boltz1ScoreForward, BoltzScoreForward
from mlff_triton.bio.models.boltz.windows import BoltzAtomForward
from mlff_triton.bio.models.diffdock.adapter import (
    SeparateDockingForward,
    SharedDockingForward,
)
from mlff_triton.bio.models.diffdock.layer_adapter import ConvolutionForward
from mlff_triton.bio.models.dualbind.adapter import DualBindForward
from mlff_triton.bio.models.encoders import row_parts, sequence_parts
from mlff_triton.bio.models.encoders.fair_esm import ESM2Forward
from mlff_triton.bio.models.encoders.huggingface import EncoderForward, LanguageHeadForward
from mlff_triton.bio.models.enformer.adapter import EnformerForward
from mlff_triton.bio.models.openfold3.adapter import (
    OpenFold3BlockForward,
    OpenFold3DiffusionForward,
    OpenFold3MSAForward,
)
from mlff_triton.bio.models.protein_mpnn.adapter import ProteinMPNNForward
from mlff_triton.bio.models.protenix.adapter import (
    ProtenixBlockForward,
    ProtenixDiffusionForward,
    ProtenixMSAForward,
)

Adapter: TypeAlias = type[FastForward[Any]]


class Family(NamedTuple):
    """Adapters for a family of models.

    Attributes
    ----------
    models : tuple of Adapter
        Adapters for whole models. The first one that fits a module is used.
    parts : tuple of Adapter
        Adapters for parts of models that no adapter supports as a whole, in the same order.
    resembles : callable
        Returns True if an unknown model looks like one of the family, so that replacing its parts
        makes sense.
    """

    models: tuple[Adapter, ...]
    parts: tuple[Adapter, ...]
    resembles: Callable[[nn.Module], bool]


FAMILIES = (
    Family(
        models=(EncoderForward, LanguageHeadForward, ESM2Forward),
        parts=(
            sequence_parts.TransformerEncoderForward,
            sequence_parts.AttentionForward,
            row_parts.MLPForward,
            row_parts.LayerNormForward,
        ),
        resembles=sequence_parts.resembles_encoder,
    ),
    Family(models=(ProteinMPNNForward,), parts=(), resembles=lambda _: False),
    Family(models=(DualBindForward,), parts=(), resembles=lambda _: False),
    Family(
        models=(SharedDockingForward, SeparateDockingForward, ConvolutionForward),
        parts=(),
        resembles=lambda _: False,
    ),
    Family(models=(EnformerForward,), parts=(), resembles=lambda _: False),
    Family(models=(AlphaGenomeForward,), parts=(), resembles=lambda _: False),
    Family(
        models=(
            BoltzBlockForward,
            BoltzMSAForward,
            BoltzConditioningForward,
            BoltzScoreForward,
            Boltz1ScoreForward,
            BoltzAtomForward,
            BoltzDiffusionForward,
            OpenFold3BlockForward,
            OpenFold3MSAForward,
            OpenFold3DiffusionForward,
            ProtenixBlockForward,
            ProtenixMSAForward,
            ProtenixDiffusionForward,
        ),
        parts=(),
        resembles=lambda _: False,
    ),
)
