"""Models of biology made faster in place, and put back exactly.

``bio.accelerate(model)`` for a model, ``bio.restore(model)`` to undo it, and
``bio.top_tokens(model, ...)`` for the most likely tokens without logits of all others.
"""

from mlff_triton.bio.forward import FallbackWarning
from mlff_triton.bio.patch import Part, Report, accelerate, accelerated, report, restore
from mlff_triton.bio.top import TopTokens, top_tokens

__all__ = [
    "FallbackWarning",
    "Part",
    "Report",
    "TopTokens",
    "accelerate",
    "accelerated",
    "report",
    "restore",
    "top_tokens",
]
