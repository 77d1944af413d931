"""Adapters for the blocks of Boltz-1 and Boltz-2, in all pair stacks and in the MSA modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from mlff_triton.bio.core.recognition import Children
from mlff_triton.bio.models.boltz.modules import KNOWN, MSA, SOURCES
from mlff_triton.bio.models.boltz.weights import block_weights, msa_weights
from mlff_triton.bio.models.structure.block import BlockForward, MSABlockForward, Names
from mlff_triton.bio.models.structure.layers import WATCHED
from mlff_triton.bio.models.structure.updates import BlockWeights


class BoltzBlockForward(BlockForward):
    """Block of a pair stack of Boltz.

    As upstream, the tokens of Boltz-2 are computed in the dtype of the parameters under autocast,
    and each call advances the random stream by four dropout masks.
    """

    supported = "Boltz"
    watches: ClassVar[tuple[str, ...]] = (
        *WATCHED,
        "num_heads",
        "pattern",
        "initial_norm",
        "no_update_s",
    )
    sources = SOURCES
    blocks: ClassVar[tuple[str, ...]] = ("PairformerLayer", "PairformerNoSeqLayer")
    known: ClassVar[tuple[Mapping[str, Children], ...]] = (KNOWN,)
    names = Names(mask="mask")

    @property
    def token_dtype(self) -> torch.dtype:
        """Dtype of the products of tokens, which autocast does not change in Boltz-2."""
        follows = self.options.precision is not None or not hasattr(self.module, "pre_norm_s")
        return self.dtype if follows else self.parameter.dtype

    @property
    def updates_tokens(self) -> bool:
        """True if the block updates tokens."""
        return hasattr(self.module, "attention") and not getattr(self.module, "no_update_s", False)

    def collect(self) -> BlockWeights:
        """Read the weights."""
        return block_weights(self.module, with_tokens=self.updates_tokens)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse parameters of dtypes other than float32, with which upstream cannot compute."""
        if self.parameter.dtype != torch.float32:
            return "its parameters are not float32; use the precision option of bio.accelerate"
        z = arguments.get("z")
        if isinstance(z, Tensor) and z.dim() != 4:
            return "pairs are not a tensor [B, N, N, C]"
        return super().refusal(arguments)

    def compute(self, arguments: Mapping[str, Any], begun: Any) -> Any:
        """Return updated tokens and pairs, or only pairs."""
        skip_dropout(arguments["z"])
        return super().compute(arguments, begun)

    def result_dtype(self, x: Tensor) -> torch.dtype:
        """Return float32, to which the dropout masks of upstream convert."""
        return torch.promote_types(x.dtype, self.parameter.dtype)

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return tokens and pairs, or pairs if ``forward`` does not take tokens."""
        return (s, z) if "s" in self._names else z


class BoltzMSAForward(MSABlockForward, BoltzBlockForward):
    """Block of the MSA module, which updates an alignment and pairs."""

    supported = "the MSA module of Boltz"
    watches = (*WATCHED, "num_heads")
    blocks, known = ("MSALayer",), MSA
    names = Names("m", mask="msa_mask", pair_mask="token_mask")

    @property
    def token_dtype(self) -> torch.dtype:
        """Dtype of the products of the alignment, equal to that of pairs."""
        return self.dtype

    def collect(self) -> BlockWeights:
        """Read the weights."""
        return msa_weights(self.module)

    def compute(self, arguments: Mapping[str, Any], begun: Any) -> Any:
        """Return updated pairs and the updated alignment."""
        msa = arguments["m"]
        torch.rand((*msa.shape[:2], 1, 1), device=msa.device)  # dropout, which upstream draws
        return super().compute(arguments, begun)

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return pairs and the alignment."""
        return z, s


def skip_dropout(z: Tensor) -> None:
    """Draw the random numbers of the four dropout masks, which upstream draws in every mode."""
    batch, n = z.shape[:2]
    for shape in (*[(batch, n, 1, 1)] * 3, (batch, 1, n, 1)):
        torch.rand(shape, device=z.device)
