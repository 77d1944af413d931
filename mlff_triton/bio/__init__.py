"""Models of biology made faster in place, and put back exactly; and sequences aligned.

``bio.accelerate(model)`` for a model, ``bio.restore(model)`` to undo it, and
``bio.top_tokens(model, ...)`` for the most likely tokens without logits of all others.
``bio.align(queries, targets)`` aligns pairs of sequences; it is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlff_triton._common.lazy import attributes
from mlff_triton.bio.encoders.top import TopTokens, top_tokens
from mlff_triton.bio.forward import FallbackWarning
from mlff_triton.bio.patch import Part, Report, accelerate, accelerated, report, restore

if TYPE_CHECKING:
    from mlff_triton.bio.alignment import Alignments, align

__all__ = [
    "Alignments",
    "FallbackWarning",
    "Part",
    "Report",
    "TopTokens",
    "accelerate",
    "accelerated",
    "align",
    "report",
    "restore",
    "top_tokens",
]

__getattr__ = attributes(
    __name__, dict.fromkeys(("Alignments", "align"), "mlff_triton.bio.alignment")
)


def __dir__() -> list[str]:
    return __all__
