"""Graphs of ligands."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import torch
from rdkit import Chem


def get_lig_graph_with_matching(mol_: Any, complex_graph: Any, remove_hs: bool, **_: Any) -> None:
    """Add atoms, bonds, and what turns about bonds, to a graph."""
    mol = Chem.RemoveHs(mol_) if remove_hs else mol_
    if any(atom.GetSymbol() == "Xe" for atom in mol.GetAtoms()):
        raise ValueError("xenon is not docked")
    ligand, bonds = complex_graph["ligand"], complex_graph["ligand", "lig_bond", "ligand"]
    ligand.x = torch.zeros(mol.GetNumAtoms(), 16).long()
    ligand.x[:, 0] = torch.tensor([atom.GetAtomicNum() - 1 for atom in mol.GetAtoms()])
    ligand.pos = torch.from_numpy(mol.GetConformer().GetPositions()).float()
    pairs = [(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()]
    ends = [pair for a, b in pairs for pair in ((a, b), (b, a))]
    bonds.edge_index = torch.tensor(ends).long().reshape(-1, 2).T
    bonds.edge_attr = torch.zeros(len(ends), 4)
    graph, mask, turns = nx.Graph(pairs), [], []
    for first, second in ends:
        graph.remove_edge(first, second)
        own, other = (nx.node_connected_component(graph, k) for k in (second, first))
        is_turned = (
            second not in other and len(own) > 1 and (len(own), second) < (len(other), first)
        )
        graph.add_edge(first, second)
        mask.append(is_turned)
        if is_turned:
            turns.append([k in own for k in range(mol.GetNumAtoms())])
    ligand.edge_mask = torch.tensor(mask).bool()
    ligand.mask_rotate = np.array(turns, dtype=bool).reshape(-1, mol.GetNumAtoms())
