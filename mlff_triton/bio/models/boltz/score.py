"""Adapters for the score networks of Boltz-1 and Boltz-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.recognition import has_structure, is_unmodified
from mlff_triton.bio.core.weights import wide_dtype
from mlff_triton.bio.models.boltz.diffusion import is_transformer
from mlff_triton.bio.models.boltz.modules import KNOWN, SOURCES
from mlff_triton.bio.models.boltz.score_forward import Biases, Given, Results, ScoreForward
from mlff_triton.bio.models.boltz.weights import (
    DIFFUSION_WATCHED,
    diffusion_layers,
    score_conditions,
    score_maps,
)
from mlff_triton.bio.models.boltz.windows import WINDOWS, check_sides, is_atom_transformer
from mlff_triton.bio.models.structure.diffusion import (
    DiffusionWeights,
    layered_biases,
    prepared_maps,
    rounded_biases,
)
from mlff_triton.bio.models.structure.score_network import ScoreWeights

PARTS = {
    "single_conditioner": "SingleConditioning",
    "atom_attention_encoder": "AtomAttentionEncoder",
    "s_to_a_linear": "Sequential",
    "token_transformer": "DiffusionTransformer",
    "a_norm": "LayerNorm",
    "atom_attention_decoder": "AtomAttentionDecoder",
}
PARTS_OF_BOLTZ_1 = {**PARTS, "pairwise_conditioner": "PairwiseConditioning"}
CONDITIONER = (
    *("norm_single", "single_embed", "fourier_embed"),
    *("norm_fourier", "fourier_to_single", "transitions"),
)
ENCODER = ("r_to_q_trans", "atom_encoder", "atom_to_token_trans")
DECODER = ("a_to_q_trans", "atom_decoder", "atom_feat_to_atom_pos_update")
CONDITIONS = ("q", "c", "atom_enc_bias", "atom_dec_bias", "token_trans_bias")
FEATURES = ("token_pad_mask", "atom_pad_mask", "atom_to_token")


class BoltzScoreForward(ScoreForward):
    """Score network of Boltz-2."""

    supported = "the score network of Boltz-2"
    watches = (*DIFFUSION_WATCHED, *WINDOWS, "disable_times")
    parts = PARTS

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a score network of Boltz with its own classes throughout."""
        own: Any = module
        if type(module).__name__ != "DiffusionModule" or not is_unmodified(module, *SOURCES):
            return False
        if {name: type(part).__name__ for name, part in own.named_children()} != cls.parts:
            return False
        encoder, decoder = own.atom_attention_encoder, own.atom_attention_decoder
        known = {own.single_conditioner: CONDITIONER, encoder: ENCODER, decoder: DECODER}
        if any(not {*names} <= dict(x.named_children()).keys() for x, names in known.items()):
            return False
        atoms = encoder.atom_encoder, decoder.atom_decoder
        stacks_fit = all(map(is_atom_transformer, atoms)) and is_transformer(own.token_transformer)
        transitions = own.single_conditioner.transitions
        return stacks_fit and all(has_structure(each, KNOWN) for each in transitions)

    def read(self) -> ScoreWeights:
        """Read the present weights."""
        own = self.module
        atoms = self.atom_transformer, own.atom_attention_decoder.atom_decoder
        for each in atoms:
            check_sides(each)
        encoder, decoder = (each.diffusion_transformer for each in atoms)
        stacks = (
            DiffusionWeights.of(diffusion_layers(stack), self.dtype, self.backend)
            for stack in (encoder, own.token_transformer, decoder)
        )
        weights = ScoreWeights(
            score_conditions(own.single_conditioner, wide_dtype(self.dtype)),
            score_maps(own, self.rows),
            *stacks,
        )
        return prepared_maps(weights, self.dtype, self.backend)

    @property
    def atom_transformer(self) -> Any:
        """Transformer of atoms in the encoder."""
        return self.module.atom_attention_encoder.atom_encoder

    def given(self, arguments: Mapping[str, Any]) -> Given | None:
        """Return what all steps have in common; None if something is missing."""
        conditions = arguments.get("diffusion_conditioning")
        if not isinstance(conditions, Mapping):
            return None
        atoms = [conditions.get(name) for name in CONDITIONS]
        return given_parts(arguments, atoms[:2], atoms[2:], conditions.get("to_keys"))

    def bias_shapes(self, given: Given, samples: int) -> list[tuple[int, ...]]:
        """Return the sizes that the biases must have along their first axes."""
        del samples
        windows = self.windows(given)
        return [windows, windows, (len(given.token_mask), *[given.token_mask.shape[1]] * 2)]

    def windows(self, given: Given) -> tuple[int, ...]:
        """Return the numbers of batches and windows, and of queries and keys of a window."""
        batch, atoms = given.atom_mask.shape
        queries = self.atom_transformer.attn_window_queries
        return batch, atoms // queries, queries, self.atom_transformer.attn_window_keys

    def biases(self, given: Given, products: torch.dtype) -> Biases:
        """Return all biases."""
        stacks = self.weights.encoder, self.weights.decoder, self.weights.tokens
        pairs = zip(given.biases, stacks, strict=True)
        return Biases._make(layered_biases(x, len(stack.layers), products) for x, stack in pairs)


class Boltz1ScoreForward(BoltzScoreForward):
    """Score network of Boltz-1, whose first step fills the cache of the sampler.

    The original network computes that step.
    """

    supported = "the score network of Boltz-1"
    parts = PARTS_OF_BOLTZ_1

    def given(self, arguments: Mapping[str, Any]) -> Given | None:
        """Return what all steps have in common; None if something is missing."""
        cache = arguments.get("model_cache")
        if not isinstance(cache, Mapping):
            return None
        encoder, decoder = (cache.get(f"atom{name}", {}) for name in ("encoder", "decoder"))
        parts = zip((encoder, decoder, cache), self._depths, strict=True)
        biases = [
            part.get(f"layer_{i}", {}).get("z") for part, depth in parts for i in range(depth)
        ]
        atoms = [encoder.get("q"), encoder.get("c")]
        return given_parts(arguments, atoms, biases, encoder.get("to_keys"))

    @property
    def _depths(self) -> list[int]:
        """Numbers of layers of the encoder, the decoder and the transformer of tokens."""
        own = self.module
        atoms = self.atom_transformer, own.atom_attention_decoder.atom_decoder
        stacks = [*(each.diffusion_transformer for each in atoms), own.token_transformer]
        return [len(stack.layers) for stack in stacks]

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse samplers without a cache, and everything that the base class refuses."""
        cache = arguments.get("model_cache")
        if not isinstance(cache, dict):
            return "the sampler does not use its cache, see use_inference_model_cache"
        return super().refusal(arguments) if cache else None

    def bias_shapes(self, given: Given, samples: int) -> list[tuple[int, ...]]:
        """Return the sizes of biases; the sizes of atoms include the samples."""
        batch, windows, queries, keys = self.windows(given)
        n, atoms = given.token_mask.shape[1], sum(self._depths[:2])
        heads = [x.shape[1] if x.dim() > 1 else 0 for x in given.biases]
        return [
            *((batch * samples * windows, h, queries, keys) for h in heads[:atoms]),
            *((batch, h, n, n) for h in heads[atoms:]),
        ]

    def biases(self, given: Given, products: torch.dtype) -> Biases:
        """Return all biases."""
        batch, windows, _, _ = self.windows(given)
        first, second, _ = self._depths
        found = [rounded_biases(x, products) for x in given.biases]

        def one_sample(x: Tensor) -> Tensor:
            return x.view(batch, -1, windows, *x.shape[1:])[:, 0]

        atoms = list(map(one_sample, found[: first + second]))
        return Biases(
            torch.stack(atoms[:first]),
            torch.stack(atoms[first:]),
            torch.stack(found[first + second :]),
        )

    def compute(self, arguments: Mapping[str, Any], begun: Results | None) -> Any:
        """Return updates of positions and the tokens."""
        if not arguments["model_cache"]:
            return self.original(**arguments)
        update, tokens = self.results(arguments, begun)
        return {"r_update": update, "token_a": tokens}


def given_parts(
    arguments: Mapping[str, Any], atoms: list[Any], biases: list[Any], to_keys: Any
) -> Given | None:
    """Return what all steps have in common; None if something is missing."""
    features = arguments.get("feats")
    if not isinstance(features, Mapping):
        return None
    tokens = [arguments.get("s_trunk"), arguments.get("s_inputs")]
    masks = [features.get(name) for name in FEATURES]
    parts = [*tokens, *atoms, *biases, *masks]
    if not callable(to_keys) or not all(isinstance(x, Tensor) for x in parts):
        return None
    return Given._make([tuple(tokens), *atoms, tuple(biases), *masks, to_keys])
