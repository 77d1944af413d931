"""The score network of Protenix, accelerated, compared with the package's own."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tests.bio.models.structure.cases import randomize
from tests.bio.models.structure.score_cases import ScoreTests

os.environ.setdefault("LAYERNORM_TYPE", "torch")  # else the package compiles a CUDA extension
diffusion = pytest.importorskip(
    "protenix.model.modules.diffusion", reason="protenix is not installed"
)
primitives = pytest.importorskip(
    "protenix.model.modules.primitives", reason="protenix is not installed"
)

SMALL: dict[str, Any] = {
    "c_atom": 32,
    "c_atompair": 16,
    "c_token": 64,
    "c_s": 48,
    "c_z": 32,
    "c_s_inputs": 40,
    "atom_encoder": {"n_blocks": 2, "n_heads": 2},
    "transformer": {"n_blocks": 3, "n_heads": 4, "drop_path_rate": 0},
    "atom_decoder": {"n_blocks": 1, "n_heads": 2},
}
WIDE: dict[str, Any] = {
    "c_atom": 128,
    "c_atompair": 16,
    "c_token": 768,
    "c_s": 384,
    "c_z": 128,
    "c_s_inputs": 449,
    "atom_encoder": {"n_blocks": 2, "n_heads": 4},
    "transformer": {"n_blocks": 3, "n_heads": 16, "drop_path_rate": 0},
    "atom_decoder": {"n_blocks": 1, "n_heads": 4},
}


def features(tokens: int, device: str) -> dict[str, Any]:
    """Return features of a chain of tokens with zero to three atoms."""
    counts = torch.arange(tokens) % 4
    counts[0] = 2
    atoms = int(counts.sum())
    made = {
        "atom_to_token_idx": torch.arange(tokens).repeat_interleave(counts),
        "ref_pos": torch.randn(atoms, 3),
        "ref_charge": torch.randn(atoms).round(),
        "ref_mask": torch.ones(atoms),
        "ref_element": torch.randn(atoms, 128),
        "ref_atom_name_chars": torch.randn(atoms, 4, 64),
        "ref_space_uid": torch.arange(tokens).repeat_interleave(counts),
        "relp": torch.randn(tokens, tokens, 139),
    }
    queries, keys, padding = primitives.rearrange_qk_to_dense_trunk(
        *[[made["ref_pos"], made["ref_space_uid"]]] * 2, *[[-2, -1]] * 2, n_queries=32, n_keys=128
    )
    made["d_lm"] = queries[0][..., None, :] - keys[0][..., None, :, :]
    made["v_lm"] = (queries[1][..., None] == keys[1][..., None, :])[..., None]
    made = {name: x.to(device) for name, x in made.items()}
    return made | {"pad_info": {"mask_trunked": padding["mask_trunked"].to(device)}}


def arguments(sizes: dict[str, Any], tokens: int, samples: int, device: str) -> dict[str, Any]:
    """Return the arguments of a step, without cached terms."""
    torch.manual_seed(tokens)
    given = features(tokens, device)
    atoms = len(given["ref_pos"])
    level = torch.tensor(30.0)
    made = {
        "x_noisy": 16 * torch.randn(samples, atoms, 3),
        "t_hat_noise_level": level.expand(samples),
        "s_inputs": torch.randn(tokens, sizes["c_s_inputs"]),
        "s_trunk": torch.randn(tokens, sizes["c_s"]),
        "z_trunk": torch.randn(tokens, tokens, sizes["c_z"]),
    }
    moved = {name: x.to(device) for name, x in made.items()}
    moved["t_hat_noise_level"] = level.to(device).expand(samples)
    return {**moved, "input_feature_dict": given, "pair_z": None, "p_lm": None, "c_l": None}


class TestProtenix(ScoreTests):
    positions, level, trunk = "x_noisy", "t_hat_noise_level", "s_trunk"

    def make(self, device="cpu", *, wide=False):
        return randomize(diffusion.DiffusionModule(**(WIDE if wide else SMALL))).to(device)

    def arguments(self, tokens, samples, device, *, wide=False):
        return arguments(WIDE if wide else SMALL, tokens, samples, device)

    def levels(self, samples):
        return 30.0 + torch.arange(samples)
