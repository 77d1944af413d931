"""Adapters for Protenix: blocks of pair stacks and of the MSA module, and its score network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mlff_triton.bio.models.protenix.modules import DIFFUSION, KNOWN, MODULE, SOURCES
from mlff_triton.bio.models.protenix.weights import block_weights, msa_weights, score_weights
from mlff_triton.bio.models.structure.block import BlockForward, MSABlockForward, Names
from mlff_triton.bio.models.structure.layers import WATCHED
from mlff_triton.bio.models.structure.pair_score import Collected, Given, Noisy, PairScoreForward
from mlff_triton.bio.models.structure.updates import BlockWeights

FEATURES = (
    *("ref_pos", "ref_charge", "ref_mask", "ref_atom_name_chars"),
    *("ref_element", "d_lm", "v_lm", "pad_info"),
)

ATTENTION = ("num_heads", "has_s", "cross_attention_mode")
"""Attributes of the attention of tokens that are read here."""


class ProtenixBlockForward(BlockForward):
    """Block of a pair stack of Protenix, whose tokens have no mask."""

    supported = "Protenix"
    watches = (*WATCHED, *ATTENTION, "c_s")
    sources, blocks, known = SOURCES, ("PairformerBlock",), (KNOWN,)
    names = Names(in_place="inplace_safe")
    skips_padding = False

    @property
    def updates_tokens(self) -> bool:
        """True if the block updates tokens."""
        return bool(self.module.c_s > 0)

    def collect(self) -> BlockWeights:
        """Read the weights."""
        return block_weights(self.module, with_tokens=self.updates_tokens)


class ProtenixMSAForward(MSABlockForward):
    """Block of the MSA module, which updates pairs and, except in the last block, an alignment.

    The alignment has no mask, and no inputs are overwritten.
    """

    supported = "the MSA module of Protenix"
    watches = (*WATCHED, "num_heads", "is_last_block", "dim")
    sources, blocks, known = SOURCES, ("MSABlock",), (KNOWN,)
    names = Names("m")
    skips_padding = False

    def collect(self) -> BlockWeights:
        """Read the weights."""
        return msa_weights(self.module)

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return the alignment, or None after the last block, and pairs."""
        return None if self.module.is_last_block else s, z


class ProtenixDiffusionForward(PairScoreForward):
    """Score network of Protenix."""

    supported = "the diffusion module of Protenix"
    watches = (*WATCHED, *ATTENTION, "n_heads", "sigma_data", "n_queries", "n_keys")
    names = "x_noisy", "t_hat_noise_level"
    sources, parts, known = SOURCES, MODULE, DIFFUSION

    def collect(self) -> Collected:
        """Read the weights."""
        return score_weights(self.module, self.dtype)

    def window(self) -> tuple[int, int]:
        """Return the numbers of queries and of keys per window of atoms."""
        encoder = self.module.atom_attention_encoder
        return encoder.n_queries, encoder.n_keys

    def noisy(self, arguments: Mapping[str, Any]) -> Noisy | str:
        """Return noisy positions and noise levels, one level if all samples share its memory."""
        if not arguments.get("use_conditioning", True):
            return "it is called without conditioning"
        x, levels = (arguments[name] for name in self.names)
        shared = levels.dim() == 1 and levels.stride(0) == 0
        return Noisy(x, levels[:1] if shared else levels)

    def prepare(self, arguments: Mapping[str, Any]) -> Given:
        """Run the modules whose results all steps share."""
        own, given = self.module, arguments["input_feature_dict"]
        s_inputs, s_trunk, z_trunk = (arguments[n] for n in ("s_inputs", "s_trunk", "z_trunk"))
        pairs = arguments.get("pair_z")
        if pairs is None:
            pairs = own.diffusion_conditioning.prepare_cache(given["relp"], z_trunk, False)
        token = given["atom_to_token_idx"]
        _, _, atoms, atom_pairs = own.atom_attention_encoder(
            token,
            *(given[name] for name in FEATURES),
            r_l=torch.zeros_like(given["ref_pos"])[None],
            s=s_trunk[None],
            z=pairs[None],
            p_lm=arguments.get("p_lm"),
            c_l=arguments.get("c_l"),
        )
        tokens = torch.cat([s_trunk, s_inputs], -1)
        return Given(tokens[None], atoms, pairs[None], atom_pairs[0], token)
