"""Adapter for the transformer of tokens in the diffusion module of Boltz-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.operators import pair_operators
from mlff_triton.bio.core.recognition import has_structure, is_unmodified
from mlff_triton.bio.models.boltz.modules import DIFFUSION, SOURCES
from mlff_triton.bio.models.boltz.weights import DIFFUSION_WATCHED, diffusion_layers
from mlff_triton.bio.models.structure.autocast import AutocastForward
from mlff_triton.bio.models.structure.diffusion import (
    DiffusionWeights,
    layered_biases,
    update_samples,
)
from mlff_triton.bio.models.structure.mask_check import MaskCheck


class BoltzDiffusionForward(AutocastForward[DiffusionWeights]):
    """Transformer that updates the tokens of samples, which share biases.

    Transformers of atoms have the same class, but attend within windows.
    """

    supported = "the diffusion transformer of Boltz-2"
    watches = DIFFUSION_WATCHED
    announces = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._check = MaskCheck()

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a diffusion transformer of Boltz-2 with its own classes throughout."""
        is_known = is_unmodified(module, *SOURCES) and is_transformer(module)
        return is_known and hasattr(module, "pair_bias_attn")  # which Boltz-1 does not have

    def read(self) -> DiffusionWeights:
        """Read the present weights."""
        return DiffusionWeights.of(diffusion_layers(self.module), self.dtype, self.backend)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse windows of atoms, and inputs of unexpected shapes, dtypes or devices."""
        if arguments.get("to_keys") is not None:
            return "keys are other tokens than queries"
        given = [arguments.get(name) for name in ("a", "s", "bias", "mask")]
        tensors = [x for x in given if isinstance(x, Tensor) and x.dtype == torch.float32]
        if len(tensors) != len(given):
            return "tokens, conditions, biases and mask are not float32"
        if self.parameter.dtype != torch.float32:
            return "its parameters are not float32; use the precision option of bio.accelerate"
        a, _, _, mask = tensors
        samples, n = a.shape[:2]
        count = arguments.get("multiplicity", 1)
        if not a.numel() or type(count) is not int or count < 1 or samples % count:
            return "there are no tokens, or their number of samples is unknown"
        sizes = {"s": (samples, n), "bias": (samples // count, n, n), "mask": (samples, n)}
        for name, size in sizes.items():
            if arguments[name].shape[: len(size)] != size:
                return f"{name} does not have the size of the tokens"
        if any(x.device != self.parameter.device for x in tensors):
            return "inputs and parameters are on different devices"
        return self._check.refusal(mask)

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Tensor:
        """Return updated tokens [B R, N, C]."""
        del begun
        a, s, bias, mask = (arguments[name] for name in ("a", "s", "bias", "mask"))
        count, weights = arguments.get("multiplicity", 1), self.weights
        dtype = self.dtype
        wanted = torch.float32 if self.backend == "triton" else dtype
        with self.without_autocast():
            x = update_samples(
                pair_operators(self.backend),
                weights,
                a.to(wanted, copy=True).contiguous().unflatten(0, (-1, count)),
                s.unflatten(0, (-1, count)),
                layered_biases(bias, len(weights.layers), dtype),
                mask.unflatten(0, (-1, count)),
            )
        return x.flatten(0, 1).to(a.dtype)


def is_transformer(module: Any) -> bool:
    """Return True for a diffusion transformer whose layers have the known structure."""
    if type(module).__name__ != "DiffusionTransformer":
        return False
    layers = [type(layer).__name__ == "DiffusionTransformerLayer" for layer in module.layers]
    is_known = bool(layers) and all(layers) and list(dict(module.named_children())) == ["layers"]
    return is_known and all(has_structure(layer, DIFFUSION) for layer in module.layers)
