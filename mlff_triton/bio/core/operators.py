"""Operators of a backend, for the computations of models.

Triton is imported only for its own backend. Each function is written out, so that mypy compares the
kernels and their references with the Protocol of the family.
"""

from __future__ import annotations

from mlff_triton.kernels.binding.protocol import BindingOperators
from mlff_triton.kernels.convolution.protocol import ConvolutionOperators
from mlff_triton.kernels.genomics.protocol import GenomicOperators
from mlff_triton.kernels.pairs.protocol import PairOperators
from mlff_triton.kernels.residues.protocol import ResidueOperators
from mlff_triton.kernels.transformer.protocol import TransformerOperators


def binding_operators(backend: str | None) -> BindingOperators:
    """Return the operators on complexes of proteins and ligands of "triton" or "torch"."""
    if backend == "torch":
        from mlff_triton.kernels.binding.reference import operators as plain

        return plain
    from mlff_triton.kernels.binding import operators as fused

    return fused


def convolution_operators(backend: str | None) -> ConvolutionOperators:
    """Return the operators of equivariant convolutions of "triton" or "torch"."""
    if backend == "torch":
        from mlff_triton.kernels.convolution.reference import operators as plain

        return plain
    from mlff_triton.kernels.convolution import operators as fused

    return fused


def genomic_operators(backend: str | None) -> GenomicOperators:
    """Return the operators on models of genomes of "triton" or "torch"."""
    if backend == "torch":
        from mlff_triton.kernels.genomics.reference import operators as plain

        return plain
    from mlff_triton.kernels.genomics import operators as fused

    return fused


def pair_operators(backend: str | None) -> PairOperators:
    """Return the operators on pairs and tokens of "triton" or "torch"."""
    if backend == "torch":
        from mlff_triton.kernels.pairs.reference import operators as plain

        return plain
    from mlff_triton.kernels.pairs import operators as fused

    return fused


def residue_operators(backend: str | None) -> ResidueOperators:
    """Return the operators on residues of "triton" or "torch"."""
    if backend == "torch":
        from mlff_triton.kernels.residues.reference import operators as plain

        return plain
    from mlff_triton.kernels.residues import operators as fused

    return fused


def transformer_operators(backend: str | None) -> TransformerOperators:
    """Return the operators on packed rows of tokens of "triton" or "torch"."""
    if backend == "torch":
        from mlff_triton.kernels.transformer.reference import operators as plain

        return plain
    from mlff_triton.kernels.transformer import operators as fused

    return fused
