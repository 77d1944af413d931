"""Pairwise alignment of many sequences: ``mlff_triton.bio.align``."""

from mlff_triton.bio.alignment.align import align
from mlff_triton.bio.alignment.result import Alignment, Alignments
from mlff_triton.bio.alignment.rows import Rows

__all__ = ["Alignment", "Alignments", "Rows", "align"]
