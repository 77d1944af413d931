"""Models of biology made faster in place, and put back exactly.

``bio.accelerate(model)`` for a model, ``bio.restore(model)`` to undo it.
"""

from mlff_triton.bio.forward import FallbackWarning
from mlff_triton.bio.patch import Part, Report, accelerate, accelerated, report, restore

__all__ = [
    "FallbackWarning",
    "Part",
    "Report",
    "accelerate",
    "accelerated",
    "report",
    "restore",
]
