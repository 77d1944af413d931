"""Operators of a backend, for the computations of models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from mlff_triton.kernels.binding.protocol import BindingOperators
from mlff_triton.kernels.genomics.protocol import GenomicOperators
from mlff_triton.kernels.residues.protocol import ResidueOperators


def import_operators(
    family: str, backend: str | None, names: Iterable[str], modules: Mapping[str, str] | None = None
) -> dict[str, Callable[..., Any]]:
    """Import operators of a family of kernels; those of its references for the backend "torch".

    ``modules`` gives the modules of operators that do not have one of their own name.
    """
    package = f"mlff_triton.kernels.{family}" + (".reference" if backend == "torch" else "")
    own = modules or {}
    return {
        name: getattr(import_module(f"{package}.{own.get(name, name)}"), name) for name in names
    }


def genomic_operators(backend: str | None) -> GenomicOperators:
    """Return the operators on models of genomes of "triton" or "torch"."""
    if backend == "torch":
        from mlff_triton.kernels.genomics.reference import operators as plain

        return plain
    from mlff_triton.kernels.genomics import operators as fused

    return fused


def binding_operators(backend: str | None) -> BindingOperators:
    """Return the operators on complexes of proteins and ligands of "triton" or "torch"."""
    if backend == "torch":
        from mlff_triton.kernels.binding.reference import operators as plain

        return plain
    from mlff_triton.kernels.binding import operators as fused

    return fused


def residue_operators(backend: str | None) -> ResidueOperators:
    """Return the operators on residues of "triton" or "torch"."""
    if backend == "torch":
        from mlff_triton.kernels.residues.reference import operators as plain

        return plain
    from mlff_triton.kernels.residues import operators as fused

    return fused
