"""The score network of OpenFold3, accelerated, compared with the package's own."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.bio.models.structure.cases import randomize
from tests.bio.models.structure.score_cases import ScoreTests

diffusion = pytest.importorskip(
    "openfold3.core.model.structure.diffusion_module", reason="openfold3 is not installed"
)
from ml_collections import ConfigDict  # noqa: E402 - a dependency of openfold3

pytestmark = pytest.mark.filterwarnings("ignore:CUDA is not available")


class Sizes(NamedTuple):
    """Numbers of channels and heads."""

    c_s: int
    c_z: int
    c_s_input: int
    c_atom: int
    c_token: int
    atom_heads: int
    heads: int


SMALL = Sizes(48, 32, 40, 32, 64, 2, 4)
WIDE = Sizes(384, 128, 449, 128, 768, 4, 16)  # those of the package


def config(sizes: Sizes) -> dict[str, Any]:
    """Return the options of a diffusion module."""
    c_s, c_z, c_s_input, c_atom, c_token, atom_heads, heads = sizes
    conditions = {"c_s": c_s, "c_z": c_z}
    atoms = {
        "c_atom": c_atom,
        "c_atom_pair": 16,
        "c_token": c_token,
        "c_hidden": c_atom // atom_heads,
        "no_heads": atom_heads,
        "n_transition": 2,
        "n_query": 32,
        "n_key": 128,
    }
    return {
        "diffusion_module": {"c_s": c_s, "c_token": c_token, "sigma_data": 16},
        "diffusion_conditioning": {
            **conditions,
            "c_s_input": c_s_input,
            "sigma_data": 16,
            "c_fourier_emb": 24,
            "max_relative_idx": 32,
            "max_relative_chain": 2,
        },
        "atom_attn_enc": {
            **atoms,
            **conditions,
            "c_atom_ref": {"element": 119, "name_chars": 256},
            "no_blocks": 2,
        },
        "diffusion_transformer": {
            **conditions,
            "c_a": c_token,
            "c_hidden": c_token // heads,
            "no_heads": heads,
            "no_blocks": 3,
            "n_transition": 2,
            "n_query": None,
            "n_key": None,
            "inf": 1e9,
        },
        "atom_attn_dec": {**atoms, "no_blocks": 1},
    }


def features(tokens: int) -> dict[str, Tensor]:
    """Return features of a chain of tokens with zero to three atoms."""
    counts = torch.arange(tokens) % 4
    counts[0] = 2
    token, atoms = torch.arange(tokens).repeat_interleave(counts), int(counts.sum())
    index, ones = torch.arange(tokens), torch.ones(tokens)
    return {
        **dict.fromkeys(("residue_index", "token_index"), index.int()),
        **dict.fromkeys(("asym_id", "entity_id", "sym_id"), ones.int()),
        "cyclic_mask": torch.zeros(tokens, dtype=torch.bool),
        "token_mask": ones,
        "num_atoms_per_token": counts.int(),
        "atom_mask": torch.ones(atoms),
        "atom_to_token_index": token.int(),
        "ref_pos": torch.randn(atoms, 3),
        "ref_mask": torch.ones(atoms).int(),
        "ref_element": torch.randn(atoms, 119),
        "ref_charge": torch.randn(atoms).round(),
        "ref_atom_name_chars": torch.randn(atoms, 4, 64),
        "ref_space_uid": token.int(),
    }


def arguments(sizes: Sizes, tokens: int, samples: int, device: str) -> dict[str, Any]:
    """Return the arguments of a step."""
    torch.manual_seed(tokens)
    batch = {name: x[None, None].to(device) for name, x in features(tokens).items()}
    made = {
        "xl_noisy": 16 * torch.randn(1, samples, batch["atom_mask"].shape[-1], 3),
        "t": torch.tensor(30.0),
        "si_input": torch.randn(1, 1, tokens, sizes.c_s_input),
        "si_trunk": torch.randn(1, 1, tokens, sizes.c_s),
        "zij_trunk": torch.randn(1, 1, tokens, tokens, sizes.c_z),
    }
    given = {name: x.to(device) for name, x in made.items()}
    masks = {name: batch[name] for name in ("token_mask", "atom_mask")}
    return {**given, **masks, "batch": batch, "use_conditioning": True}


class TestOpenFold3(ScoreTests):
    positions, level, trunk = "xl_noisy", "t", "si_trunk"

    def make(self, device="cpu", *, wide=False):
        options = ConfigDict(config(WIDE if wide else SMALL))
        return randomize(diffusion.DiffusionModule(options)).to(device)

    def arguments(self, tokens, samples, device, *, wide=False):
        return arguments(WIDE if wide else SMALL, tokens, samples, device)

    def levels(self, samples):
        return 30.0 + torch.arange(samples)[None]
