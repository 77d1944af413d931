"""Adapters for OpenFold3: blocks of pair stacks and of the MSA module, and its score network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mlff_triton.bio.models.openfold3.modules import DIFFUSION, KNOWN, MODULE, SOURCES
from mlff_triton.bio.models.openfold3.weights import block_weights, msa_weights, score_weights
from mlff_triton.bio.models.structure.block import BlockForward, MSABlockForward, Names
from mlff_triton.bio.models.structure.layers import WATCHED
from mlff_triton.bio.models.structure.pair_score import Collected, Given, Noisy, PairScoreForward
from mlff_triton.bio.models.structure.updates import BlockWeights

EPS = 1e-9
"""Added to numbers of atoms per token, as upstream does."""

MASKS = "atom_mask", "token_mask"


class OpenFold3BlockForward(BlockForward):
    """Block of a pair stack of OpenFold3."""

    supported = "OpenFold3"
    watches = WATCHED
    sources, blocks, known = SOURCES, ("PairFormerBlock", "PairBlock"), (KNOWN,)
    names = Names(mask="single_mask", in_place="inplace_safe")

    @property
    def updates_tokens(self) -> bool:
        """True if the block updates tokens."""
        return type(self.module).__name__ == "PairFormerBlock"

    def collect(self) -> BlockWeights:
        """Read the weights."""
        return block_weights(self.module, with_tokens=self.updates_tokens)

    def outputs(self, s: Tensor | None, z: Tensor) -> Any:
        """Return tokens and pairs, or pairs alone."""
        return (s, z) if self.updates_tokens else z


class OpenFold3MSAForward(MSABlockForward):
    """Block of the MSA module of OpenFold3."""

    supported = "the MSA module of OpenFold3"
    watches = (*WATCHED, "opm_first", "skip_msa_update")
    sources, blocks, known = SOURCES, ("MSAModuleBlock",), (KNOWN,)
    names = Names("m", mask="msa_mask", in_place="inplace_safe")

    def collect(self) -> BlockWeights:
        """Read the weights."""
        return msa_weights(self.module)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse inputs that are offloaded to the CPU."""
        if arguments.get("_offload_inference", False):
            return "it moves inputs to the CPU and back"
        return super().refusal(arguments)

    def begin(self, arguments: Mapping[str, Any]) -> Any:
        """Begin unless inputs are offloaded to the CPU."""
        if arguments.get("_offload_inference", False):
            return None
        return super().begin(arguments)


class OpenFold3DiffusionForward(PairScoreForward):
    """Score network of OpenFold3."""

    supported = "the diffusion module of OpenFold3"
    watches = (*WATCHED, "sigma_data", "n_query", "n_key")
    names = "xl_noisy", "t"
    sources, parts, known = SOURCES, MODULE, DIFFUSION

    def collect(self) -> Collected:
        """Read the weights."""
        return score_weights(self.module, self.dtype)

    def window(self) -> tuple[int, int]:
        """Return the numbers of queries and of keys per window of atoms."""
        encoder = self.module.atom_attn_enc
        return int(encoder.n_query), int(encoder.n_key)

    def noisy(self, arguments: Mapping[str, Any]) -> Noisy | str:
        """Return noisy positions and their noise levels."""
        if not arguments.get("use_conditioning"):
            return "it is called without conditioning"
        if any(arguments[name] is not arguments["batch"][name] for name in MASKS):
            return "masks of atoms or tokens are not those of its features"
        x, levels = (arguments[name] for name in self.names)
        if x.dim() != 4 or len(x) != 1:
            return "positions are not those of samples of one complex"
        return Noisy(x[0], levels.reshape(-1))

    def masks(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the masks of atoms and tokens."""
        return [arguments[name] for name in MASKS]

    def prepare(self, arguments: Mapping[str, Any]) -> Given:
        """Run the modules whose results all steps share."""
        own, batch = self.module, arguments["batch"]
        s_input, s_trunk = arguments["si_input"], arguments["si_trunk"]
        _, pairs = own.diffusion_conditioning(
            batch=batch,
            t=arguments["t"],
            si_input=s_input,
            si_trunk=s_trunk,
            zij_trunk=arguments["zij_trunk"],
            use_conditioning=True,
            chunk_size=arguments.get("chunk_size"),
        )
        _, _, atoms, atom_pairs = own.atom_attn_enc(
            batch=batch,
            rl=torch.zeros_like(batch["ref_pos"]),
            si_trunk=s_trunk,
            zij_trunk=pairs,
            use_high_precision_attention=arguments.get("use_high_precision_attention", False),
        )
        atom_mask, token_mask = (batch[name].flatten() for name in MASKS)
        return Given(
            torch.cat([s_trunk, s_input], -1).flatten(0, -3),
            atoms.flatten(0, -3),
            pairs.flatten(0, -4),
            atom_pairs.flatten(0, -4),
            batch["atom_to_token_index"].flatten(),
            EPS,
            atom_mask,
            token_mask,
            _starts(atom_mask, *self.window()),
        )


def _starts(mask: Tensor, queries: int, keys: int) -> Tensor:
    """Return the first key of each window, int32 [W], with windows shifted to lie within the atoms.

    Source: ``get_block_indices`` of OpenFold3, which shifts windows away from the beginning first.
    """
    first = queries // 2 - keys // 2 + torch.arange(0, len(mask), queries, device=mask.device)
    beyond = (first + keys - int(mask.sum())).clamp(min=0)
    return torch.where(first < 0, 0, first - beyond).int()
