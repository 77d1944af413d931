"""Accelerated protein language models, and sequence alignment.

``bio.accelerate(model)`` makes a model faster in place, ``bio.restore(model)`` undoes it, and
``bio.top_tokens(model, ...)`` returns the most likely tokens without writing all logits.
``bio.align(queries, targets)`` aligns pairs of sequences, and ``bio.embed_files(fasta, out,
model=...)`` embeds the proteins of a file; they are loaded on first use.

- ``patch``: `accelerate`, `accelerated`, `restore`, `refresh` and `report`
- ``core``: parts that all adapters share
- ``models``: the models that `accelerate` recognizes, one package each
- ``structure``: blocks of models that predict structures (Boltz, OpenFold3, Protenix)
- ``alignment``: sequence alignment
- ``embedding``: embeddings of all proteins in a file
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlff_triton._common.lazy import attributes
from mlff_triton.bio.core.fast_forward import FallbackWarning
from mlff_triton.bio.models.encoders.top_tokens import TopTokens, top_tokens
from mlff_triton.bio.patch import (
    Part,
    PartsWarning,
    Report,
    accelerate,
    accelerated,
    refresh,
    report,
    restore,
)

if TYPE_CHECKING:
    from mlff_triton.bio.alignment import Alignments, align
    from mlff_triton.bio.embedding import embed_files

__all__ = [
    "Alignments",
    "FallbackWarning",
    "Part",
    "PartsWarning",
    "Report",
    "TopTokens",
    "accelerate",
    "accelerated",
    "align",
    "embed_files",
    "refresh",
    "report",
    "restore",
    "top_tokens",
]

_HOME_OF = {
    "Alignments": "mlff_triton.bio.alignment",
    "align": "mlff_triton.bio.alignment",
    "embed_files": "mlff_triton.bio.embedding",
}

__getattr__ = attributes(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return __all__
