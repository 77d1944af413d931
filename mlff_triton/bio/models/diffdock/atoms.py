"""Embeddings of atoms and residues: all categorical features in one look-up."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.weights import exact


class AtomTable(NamedTuple):
    """Embeddings of all categorical features, one after another, and a row of NaN at the end.

    Attributes
    ----------
    rows : [rows + 1, ns]
        Embeddings.
    starts, sizes : int64 [features]
        First row, and number of rows of each feature.
    """

    rows: Tensor
    starts: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, encoder: Any) -> AtomTable:
        """Read the embeddings of a model's encoder of atoms, in float64."""
        tables = [exact(each.weight) for each in encoder.atom_embedding_list]
        sizes = torch.tensor([len(table) for table in tables])
        unknown = torch.full_like(tables[0][:1], torch.nan)
        rows = torch.cat([*tables, unknown])
        starts = sizes.cumsum(0) - sizes
        return cls(rows, starts.to(rows.device), sizes.to(rows.device))

    def embed(self, x: Tensor) -> Tensor:
        """Return the sums [N, ns] of the embeddings of categories [N, features], NaN if unknown."""
        x = x.long()
        is_known = (x >= 0) & (x < self.sizes)
        index = torch.where(is_known, x + self.starts, len(self.rows) - 1)
        return nn.functional.embedding_bag(index, self.rows, mode="sum")


def embed_atoms(encoder: Any, table: AtomTable, x: Tensor) -> Tensor:
    """Return the embeddings [N, ns] of atoms or residues from all features [N, F]."""
    n_kinds = encoder.num_categorical_features
    embedded = table.embed(x[:, :n_kinds])
    if hasattr(encoder, "additional_features_dim"):
        if encoder.additional_features_dim > 0:
            rows = torch.cat([embedded, x[:, n_kinds:]], 1)
            embedded = encoder.additional_features_embedder(rows)
        return embedded
    n_scalars = encoder.num_scalar_features
    if n_scalars > 0:
        embedded = embedded + encoder.linear(x[:, n_kinds : n_kinds + n_scalars])
    if encoder.lm_embedding_type is not None:
        rows = torch.cat([embedded, x[:, -encoder.lm_embedding_dim :]], 1)
        embedded = encoder.lm_embedding_layer(rows)
    return embedded


def n_features(encoder: Any) -> int:
    """Return the number of features per atom that an encoder expects."""
    more = getattr(encoder, "additional_features_dim", None)
    if more is None:
        more = encoder.num_scalar_features
        more += encoder.lm_embedding_dim if encoder.lm_embedding_type is not None else 0
    total: int = encoder.num_categorical_features + more
    return total
