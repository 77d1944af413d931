"""Sequences to align with `mlff_triton.bio.align` on the CPU, and their scores."""

from __future__ import annotations

from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

from mlff_triton import bio

QUERIES = ["ACGTTAGGGT", "acgt", "", "GATTACA", "NNACGT"]
TARGETS = ["TTACTTAGGGT", "CCACGTCC", "A", "GCATGCN", ""]
SCORES = [6, -6, -5, -6, -15]


def align(queries=QUERIES, targets=TARGETS, *, device="cpu", **options):
    return bio.align(queries, targets, device=device, **options)


def as_records(texts):
    return [SeqRecord(Seq(text), id=f"r{k}") for k, text in enumerate(texts)]
