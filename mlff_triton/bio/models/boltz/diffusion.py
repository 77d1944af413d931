"""Adapter for the transformer of tokens in the diffusion module of Boltz-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mlff_triton.bio.core.operators import pair_operators
from mlff_triton.bio.core.recognition import children, has_structure, is_unmodified
from mlff_triton.bio.core.weights import exact, exact_norm
from mlff_triton.bio.models.boltz.adapter import HEADS_FIRST, SOURCES
from mlff_triton.bio.models.structure.autocast import AutocastForward
from mlff_triton.bio.models.structure.diffusion import (
    DiffusionLayer,
    DiffusionWeights,
    condition_maps,
    layered_biases,
    update_samples,
)
from mlff_triton.bio.models.structure.maps import exact_weight, weight
from mlff_triton.bio.models.structure.mask_check import MaskCheck
from mlff_triton.errors import InputError
from mlff_triton.kernels.types.pair_stack import (
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
)

KNOWN = {
    "AdaLN": children({"LayerNorm": "a_norm s_norm", "Linear": "s_scale s_bias"}),
    "AttentionPairBias": children(
        {"Linear": "proj_q proj_k proj_v proj_g proj_o", "Rearrange Sequential": "proj_z"}
    ),
    "Sequential": children(
        {"Linear LayerNorm": "0", "Linear Sigmoid SwiGLU": "1", "Rearrange nothing": "2"}
    ),
    "ConditionedTransitionBlock": children(
        {
            "AdaLN": "adaln",
            "Sequential": "swish_gate output_projection",
            "Linear": "a_to_b b_to_a",
        }
    ),
    "DiffusionTransformerLayer": children(
        {
            "AdaLN": "adaln",
            "AttentionPairBias": "pair_bias_attn",
            "Linear": "output_projection_linear",
            "Sequential": "output_projection",
            "ConditionedTransitionBlock": "transition",
            "LayerNorm Identity nothing": "post_lnorm",
        }
    ),
}
"""Submodules of classes of Boltz."""

DIFFUSION = ("eps", "precision", "pattern", "num_heads")
"""Attributes of modules that `diffusion_layers` reads."""


class BoltzDiffusionForward(AutocastForward[DiffusionWeights]):
    """Transformer that updates the tokens of samples, which share biases.

    Transformers of atoms have the same class, but attend within windows.
    """

    supported = "the diffusion transformer of Boltz-2"
    watches = DIFFUSION
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
    return is_known and all(has_structure(layer, KNOWN) for layer in module.layers)


def diffusion_layers(module: Any) -> list[DiffusionLayer]:
    """Read the weights of a diffusion transformer in float64.

    Raises
    ------
    InputError
        If it is built in another way than the package builds it.
    """
    return [_layer(layer) for layer in module.layers]


def _layer(layer: Any) -> DiffusionLayer:
    attention, transition = layer.pair_bias_attn, layer.transition
    order = attention.proj_z
    if (order[-1] if isinstance(order, nn.Sequential) else order).pattern != HEADS_FIRST:
        raise InputError("the axes of biases have an unknown order")
    others = attention.proj_k, attention.proj_v, attention.proj_g
    inputs = torch.cat([exact_weight(attention.proj_q), *map(weight, others)])
    bias = inputs.new_zeros(len(inputs))
    bias[: len(attention.proj_q.bias)] = exact(attention.proj_q.bias)
    swish = weight(transition.swish_gate[0]).chunk(2)
    norm = getattr(layer, "post_lnorm", None)
    return DiffusionLayer(
        heads=attention.num_heads,
        attention_conditions=_conditions(layer.adaln, layer.output_projection[0]),
        attention=ConditionedAttentionWeights(inputs, bias, weight(attention.proj_o)),
        transition_conditions=_conditions(transition.adaln, transition.output_projection[0]),
        transition=ConditionedTransitionWeights(
            torch.cat([swish[1], swish[0], weight(transition.a_to_b)]),
            weight(transition.b_to_a),
        ),
        last_norm=exact_norm(norm) if isinstance(norm, nn.LayerNorm) else None,
    )


def _conditions(norm: Any, gate: Any) -> Any:
    if norm.a_norm.weight is not None or norm.s_norm.bias is not None:
        raise InputError("a normalization with conditions has a scale or a shift of its own")
    return condition_maps(
        (exact(norm.s_norm.weight), None, norm.s_norm.eps),
        (exact_weight(norm.s_scale), exact(norm.s_scale.bias)),
        weight(norm.s_bias),
        (exact_weight(gate), exact(gate.bias)),
        norm.a_norm.eps,
    )
