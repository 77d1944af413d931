"""Adapter for the module of Boltz-2 that computes the data shared by all sampler steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.first_launch import before_first_launch
from mlff_triton.bio.core.operators import pair_operators
from mlff_triton.bio.core.recognition import children, has_children, has_structure, is_unmodified
from mlff_triton.bio.core.weights import exact_norm
from mlff_triton.bio.models.boltz.modules import KNOWN, SOURCES
from mlff_triton.bio.models.boltz.weights import transition
from mlff_triton.bio.models.structure.autocast import AutocastForward
from mlff_triton.bio.models.structure.biases import BiasMaps
from mlff_triton.bio.models.structure.maps import weight
from mlff_triton.bio.models.structure.updates import MAX_TOKEN_CHANNELS, prepared, row_dtype
from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs.types import TransitionWeights

BIASES = "atom_enc_proj_z", "atom_dec_proj_z", "token_trans_proj_z"
_PARTS = children(
    {
        "PairwiseConditioning": "pairwise_conditioner",
        "AtomEncoder": "atom_encoder",
        "ModuleList": " ".join(BIASES),
    }
)
_PAIRS = children({"Sequential": "dim_pairwise_init_proj", "ModuleList": "transitions"})
_MAP = {"Sequential": children({"LayerNorm": "0", "Linear": "1"})}
_NAMES = "s_trunk", "z_trunk", "relative_position_encoding"


class ConditioningWeights(NamedTuple):
    """Weights of the transitions of pairs, and of the maps to biases of all layers."""

    transitions: list[TransitionWeights]
    encoder: BiasMaps
    decoder: BiasMaps
    tokens: BiasMaps


class BoltzConditioningForward(AutocastForward[ConditioningWeights]):
    """Conditioning of pairs, and the biases of all layers that attend to them.

    Boltz normalizes pairs anew for each of 24 layers. Here, pairs are normalized once, and one
    projection computes the biases of all layers. The biases are views in which the pairs of a head
    are contiguous, as attention reads them, in the dtype of products.
    """

    supported = "the conditioning of Boltz-2"
    watches = ("eps", "precision")

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for the conditioning of Boltz-2 with its own classes throughout."""
        own: Any = module
        if type(module).__name__ != "DiffusionConditioning" or not is_unmodified(module, *SOURCES):
            return False
        if not has_children(module, _PARTS) or not has_children(own.pairwise_conditioner, _PAIRS):
            return False
        maps = [each for name in BIASES for each in getattr(own, name)]
        maps.append(own.pairwise_conditioner.dim_pairwise_init_proj)
        transitions = own.pairwise_conditioner.transitions
        return all(len(getattr(own, name)) for name in BIASES) and (
            all(type(each).__name__ == "Sequential" for each in maps)
            and all(type(each).__name__ == "Transition" for each in transitions)
            and all(has_structure(each, _MAP) for each in maps)
            and all(has_structure(each, KNOWN) for each in transitions)
        )

    def read(self) -> ConditioningWeights:
        """Read the present weights."""
        own = self.module
        channels = len(own.token_trans_proj_z[0][0].weight)
        if self.backend == "triton" and channels > MAX_TOKEN_CHANNELS:
            raise InputError(f"the pairs have {channels} channels: use at most 512")
        transitions = [transition(each) for each in own.pairwise_conditioner.transitions]
        maps = (_bias_maps(getattr(own, name)) for name in BIASES)
        return prepared(ConditioningWeights(transitions, *maps), self.dtype, self.backend)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse inputs of unexpected shapes or devices."""
        if self.parameter.dtype != torch.float32:
            return "its parameters are not float32; use the precision option of bio.accelerate"
        given: list[Any] = [arguments.get(name) for name in _NAMES]
        if not all(isinstance(x, Tensor) for x in given):
            return "tokens, pairs or relative positions are not tensors"
        s, z, positions = given
        if z.dim() != 4 or z.shape[1] != z.shape[2] or positions.shape[:3] != z.shape[:3]:
            return "pairs and relative positions are not tensors [B, N, N, C]"
        if any(x.device != self.parameter.device for x in (s, z, positions)):
            return "inputs and parameters are on different devices"
        return None if z.numel() else "its inputs are empty"

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Any:
        """Return atoms, their conditions, a function that finds keys, and all biases."""
        del begun
        own, products, (_, encoder, decoder, _) = self.module, self.dtype, self.weights
        s, given, positions = (arguments[name] for name in _NAMES)
        z = own.pairwise_conditioner.dim_pairwise_init_proj(torch.cat((given, positions), -1))
        own_dtype, z = z.dtype, self._rows(z, products)
        with self.without_autocast():
            before_first_launch(
                self.backend,
                (type(self), z.shape, z.dtype, products),
                z,
                lambda: self._tokens(torch.empty_like(z)),
            )
            tokens = self._tokens(z)
        z = z.to(own_dtype)
        q, c, pairs, to_keys = own.atom_encoder(feats=arguments["feats"], s_trunk=s, z=z)
        with self.without_autocast():
            windows = self._rows(pairs, products).flatten(0, 1)
            atoms = (
                self._biases(maps, windows).unflatten(0, pairs.shape[:2])
                for maps in (encoder, decoder)
            )
            return q, c, to_keys, *atoms, tokens

    def _tokens(self, z: Tensor) -> Tensor:
        """Update pairs in place, and return the biases of tokens [B, N, N, L H]."""
        for each in self.weights.transitions:
            pair_operators(self.backend).transition_(z, each)
        return self._biases(self.weights.tokens, z)

    def _biases(self, maps: BiasMaps, z: Tensor) -> Tensor:
        """Return biases [B, N, M, L H] of pairs [B, N, M, P]."""
        return maps.joined(pair_operators(self.backend), z).movedim(1, -1)

    def _rows(self, z: Tensor, products: torch.dtype) -> Tensor:
        """Return contiguous pairs in the dtype in which they are updated."""
        return z.to(row_dtype(self.backend, z.dtype, products)).contiguous()


def _bias_maps(layers: Any) -> BiasMaps:
    norms = [exact_norm(norm) for norm, _ in layers]
    return BiasMaps.of(norms, [weight(linear) for _, linear in layers])
