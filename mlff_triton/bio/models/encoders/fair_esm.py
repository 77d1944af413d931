"""ESM-2 of the package ``fair-esm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import FastForward, Options
from mlff_triton.bio.core.recognition import is_unmodified
from mlff_triton.bio.core.value_check import IndexCheck, ValueCheck
from mlff_triton.bio.models.encoders.batch_runner import BatchRunner, TokenBatch, make_runner
from mlff_triton.bio.models.encoders.language_head import HeadWeights, LanguageHead
from mlff_triton.bio.models.encoders.masks import refused_values
from mlff_triton.bio.models.encoders.weights import (
    Embedding,
    EncoderWeights,
    Layer,
    LazyLayers,
    Linear,
    Norm,
    exact_frequencies,
)
from mlff_triton.kernels.transformer.types import TopLogit, largest


class ReadyModel(NamedTuple):
    """Encoder, its number of layers, and language head, ready to run."""

    encoder: BatchRunner
    layers: int
    head: LanguageHead


class ESM2Forward(FastForward[ReadyModel]):
    """Forward of `esm.model.esm2.ESM2`."""

    supported = "ESM-2 of fair-esm"
    watches = ("eps", "embed_scale", "padding_idx", "token_dropout", "mask_idx", "num_heads")
    zeroes_padding = True

    def __init__(self, module: nn.Module, options: Options, model: nn.Module | None = None) -> None:
        super().__init__(module, options, model)
        self._token_check = IndexCheck("tokens")

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a module with the submodules of `ESM2`."""
        layers: Any = getattr(module, "layers", None)
        parts = ("embed_tokens", "emb_layer_norm_after", "lm_head", "padding_idx", "mask_idx")
        if not isinstance(layers, nn.ModuleList) or not all(hasattr(module, p) for p in parts):
            return False
        tokens: Any = module.embed_tokens
        attentions: list[Any] = [getattr(layer, "self_attn", None) for layer in layers]
        return (
            bool(len(layers))
            and all(map(_is_layer, layers))
            and len({attention.num_heads for attention in attentions}) == 1
            and tokens.max_norm is None
            and is_unmodified(module, "esm.")
        )

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse requests for attention weights and contacts."""
        for name in ("need_head_weights", "return_contacts"):
            if arguments.get(name):
                return f"{name} is not supported"
        tokens = arguments.get("tokens")
        if tokens is None or tokens.dim() != 2:
            return "tokens of shape [B, L] are required"
        return refused_values(self._checks(tokens))

    def _checks(self, tokens: Tensor) -> list[tuple[ValueCheck, Tensor]]:
        """Return the check of tokens; padding counts, although its embedding is not read."""
        self._token_check = self._token_check.of(len(self.module.embed_tokens.weight))
        return [(self._token_check, tokens)]

    def read(self) -> ReadyModel:
        """Read the present weights."""
        module = self.module
        embedding = Embedding(
            word=module.embed_scale * module.embed_tokens.weight,
            position=None,
            kind=None,
            norm=None,
            mask_token=module.mask_idx if module.token_dropout else None,
        )
        encoder = EncoderWeights(
            embedding=embedding,
            layers=LazyLayers(_layer, module.layers),
            heads=module.layers[0].self_attn.num_heads,
            norm_first=True,
            activation="gelu",
            frequencies=exact_frequencies(module.layers[0].self_attn.rot_emb.inv_freq),
            norm=Norm.of(module.emb_layer_norm_after),
        )
        own, head = self.module.embed_tokens.weight.dtype, module.lm_head
        weights = HeadWeights(
            Linear.of(head.dense), "gelu", Norm.of(head.layer_norm), Linear(head.weight, head.bias)
        )
        return ReadyModel(
            make_runner(encoder, self.dtype, own, self.backend, self.options),
            len(encoder.layers),
            LanguageHead(weights, self.dtype, self.backend),
        )

    def begin(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """Replay the graph for the batch's shape, if there is one."""
        if arguments.keys() != {"tokens"} or arguments["tokens"].dim() != 2:
            return None
        for check, tensor in self._checks(arguments["tokens"]):
            check.queue(tensor)
        return self.weights.encoder.begin(self._tokens(arguments))

    def compute(self, arguments: Mapping[str, Any], begun: Tensor | None) -> dict[str, Any]:
        """Return logits, and representations of the requested layers, zero for padding."""
        encoder, layers, head = self.weights
        requested = set(arguments.get("repr_layers", ()))
        hidden = begun
        kept: dict[int, Tensor] = {}
        if hidden is None:
            hidden, kept = encoder(self._tokens(arguments), requested - {layers})
        if layers in requested:
            kept[layers] = hidden
        return {"logits": head(hidden), "representations": kept}

    def top(self, tokens: Tensor) -> TopLogit:
        """Return the largest logit at every position and its index."""
        return self.serve(self._top, self._largest, (tokens,), {})

    def _top(self, arguments: Mapping[str, Any], begun: Tensor | None) -> TopLogit:
        hidden = self.weights.encoder(self._tokens(arguments))[0] if begun is None else begun
        return self.weights.head.top(hidden)

    def _largest(self, *args: Any, **kwargs: Any) -> TopLogit:
        return largest(self.original(*args, **kwargs)["logits"])

    def _tokens(self, arguments: Mapping[str, Any]) -> TokenBatch:
        ids = arguments["tokens"]
        return TokenBatch(ids, ids != self.module.padding_idx)


def _is_layer(layer: Any) -> bool:
    inner = ("self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")
    if not all(hasattr(layer, name) for name in inner):
        return False
    own = layer.self_attn
    return (
        getattr(own, "rot_emb", None) is not None
        and own.bias_k is None
        and not own.add_zero_attn
        and own.num_heads * own.head_dim == own.q_proj.out_features
        and own.scaling == own.head_dim**-0.5
    )


def _layer(layer: Any) -> Layer:
    own = layer.self_attn
    return Layer(
        attention_norm=Norm.of(layer.self_attn_layer_norm),
        qkv=Linear.of(own.q_proj, own.k_proj, own.v_proj),
        out=Linear.of(own.out_proj),
        network_norm=Norm.of(layer.final_layer_norm),
        up=Linear.of(layer.fc1),
        down=Linear.of(layer.fc2),
    )
