"""Graphs of receptors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import HeteroData

from tests.bio.models.diffdock.neighbors import radius_graph


class InferenceDataset:
    """Receptors of PDB files, by their alpha carbons, with a feature for the residue's name."""

    def __init__(self, protein_files: list[str], receptor_radius: float, **options: Any) -> None:
        assert options["ligand_descriptions"] == ["CC"]
        self.path, self.radius = Path(protein_files[0]), receptor_radius
        self.lm_embeddings = options["precomputed_lm_embeddings"]

    def __getitem__(self, index: int) -> HeteroData:
        data = HeteroData()
        lines = [x for x in self.path.read_text().splitlines() if x[12:16] == " CA "]
        data["success"] = bool(lines)
        if not lines:
            print("the receptor has no residues")  # noqa: T201 - as the original does
            return data
        pos = torch.tensor([[float(x[k : k + 8]) for k in (30, 38, 46)] for x in lines])
        data.original_center = pos.mean(0, keepdim=True)
        data["ligand"].pos = torch.zeros(2, 3)
        data["receptor"].pos = pos - data.original_center
        data["receptor"].x = torch.tensor([[float(sum(map(ord, x[17:20])) % 38)] for x in lines])
        batch = torch.zeros(len(lines)).long()
        index_of = radius_graph(pos, self.radius, batch, 6)
        data["receptor", "rec_contact", "receptor"].edge_index = index_of
        return data
