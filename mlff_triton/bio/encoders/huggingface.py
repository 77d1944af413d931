"""Encoders and language heads of Hugging Face's transformers, 4.5x and 5.x: ESM and BERT.

They are known by their submodules, not by their classes, so that nothing need be imported.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from mlff_triton.bio.encoders.encoder import (
    Embedding,
    Encoder,
    Layer,
    Layers,
    Linear,
    Norm,
    exact_frequencies,
)
from mlff_triton.bio.encoders.head import Head, HeadWeights
from mlff_triton.bio.encoders.runner import Runner, Tokens, runner
from mlff_triton.bio.encoders.structure import is_norm, is_plain
from mlff_triton.bio.forward import FastForward
from mlff_triton.kernels.types.top_logit import TopLogit, largest

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "silu"}
SERVED = {"input_ids", "attention_mask", "token_type_ids", "return_dict"}
OUTPUT = "BaseModelOutputWithPoolingAndCrossAttentions"
LINEAR = (
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    *(f"{name}.dense" for name in ("attention.output", "intermediate", "output")),
)
KNOWN = {  # submodules of a model and of its parts, of all generations
    "": {"embeddings", "encoder", "rotary_embeddings", "pooler", "contact_head"},
    "encoder": {"layer", "emb_layer_norm_after"},
    "embeddings": {
        *("word_embeddings", "position_embeddings", "token_type_embeddings"),
        *("LayerNorm", "layer_norm", "dropout"),
    },
}


class Ready(NamedTuple):
    """An encoder to run, and the token whose absence gives positions, if tokens are counted."""

    runner: Runner
    padding: int | None


class EncoderForward(FastForward[Ready]):
    """`EsmModel` and `BertModel`."""

    supported = "ESM-1b, ESM-2 and BERT encoders of transformers"

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether it has such an encoder's submodules and no others, and is no decoder."""
        config = getattr(module, "config", None)
        layers = _at(module, "encoder.layer")
        if config is None or not isinstance(layers, nn.ModuleList) or not len(layers):
            return False
        words = _at(module, "embeddings.word_embeddings")
        return (
            all(_names(_at(module, path)) <= names for path, names in KNOWN.items())
            and is_plain(words, nn.Embedding)
            and words.embedding_dim == config.hidden_size
            and all(is_plain(_at(layer, path), nn.Linear) for layer in layers for path in LINEAR)
            and all(is_norm(norm) for layer in layers for norm in _norms(layer))
            and hasattr(sys.modules[type(module).__module__], OUTPUT)
            and not getattr(config, "is_decoder", False)
            and _kind_of_positions(module) in ("absolute", "rotary")
            and _activation(module) is not None
        )

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Only tokens, masks and types of tokens are served."""
        asked = [
            name
            for name, value in arguments.items()
            if name not in SERVED and value is not None and value is not False
        ]
        config = self.module.config
        wanted = ("output_attentions", "output_hidden_states")
        asked += [name for name in wanted if getattr(config, name, False)]
        if asked:
            return f"{asked[0]} was asked for"
        ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
        if ids is None or ids.dim() != 2:
            return "input_ids [B, L] are needed"
        if mask is not None and mask.shape != ids.shape:
            return f"its attention mask is not [B, L] but {list(mask.shape)}"
        if mask is not None and self.options.first_token and not bool(mask[:, 0].all()):
            return "a sequence begins with padding, and the model looks at its first token"
        return None

    def read(self) -> Ready:
        """The encoder of now, ready to run."""
        out = next(self.module.parameters()).dtype
        absolute = _kind_of_positions(self.module) == "absolute"
        return Ready(
            runner(self._encoder(), self.dtype, out, self.backend, self.options),
            getattr(self.module.embeddings, "padding_idx", None) if absolute else None,
        )

    def _encoder(self) -> Encoder:
        module, config = self.module, self.module.config
        parts = module.embeddings
        norm = getattr(parts, "LayerNorm", None) or getattr(parts, "layer_norm", None)
        absolute = _kind_of_positions(module) == "absolute"
        kinds = getattr(parts, "token_type_embeddings", None)
        embedding = Embedding(
            word=parts.word_embeddings.weight,
            position=parts.position_embeddings.weight if absolute else None,
            kind=None if kinds is None else kinds.weight,
            norm=None if norm is None else Norm.of(norm),
            mask_token=config.mask_token_id if getattr(parts, "token_dropout", False) else None,
            count_padding=not _tells_its_embeddings_of_padding(module),
        )
        last = getattr(module.encoder, "emb_layer_norm_after", None)
        return Encoder(
            embedding=embedding,
            layers=Layers(_layer, module.encoder.layer),
            heads=config.num_attention_heads,
            norm_first=_norm_first(module.encoder.layer[0]),
            activation=str(_activation(module)),
            frequencies=None if absolute else _frequencies(module),
            norm=None if last is None else Norm.of(last),
        )

    def begin(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """Replay a graph, if there is one."""
        ids = arguments.get("input_ids")
        if ids is None or ids.dim() != 2 or not arguments.keys() <= SERVED:
            return None
        return self.weights.runner.begin(self._tokens(arguments))

    def compute(self, arguments: Mapping[str, Any], begun: Tensor | None) -> Any:
        """Hidden states of all tokens; those of padding are zero."""
        module = self.module
        hidden = begun
        if hidden is None:
            hidden, _ = self.weights.runner(self._tokens(arguments))
        pooler = getattr(module, "pooler", None)
        pooled = None if pooler is None else pooler(hidden)
        output = getattr(sys.modules[type(module).__module__], OUTPUT)(
            last_hidden_state=hidden, pooler_output=pooled
        )
        wanted = arguments.get("return_dict")
        as_dict = getattr(module.config, "return_dict", True) if wanted is None else wanted
        return output if as_dict else output.to_tuple()

    def _tokens(self, arguments: Mapping[str, Any]) -> Tokens:
        ids = arguments["input_ids"]
        padding = self.weights.padding
        positions = None if padding is None else _positions(ids, padding)
        return Tokens(
            ids, arguments.get("attention_mask"), positions, arguments.get("token_type_ids")
        )


class HeadForward(FastForward[Head]):
    """The language heads of `EsmForMaskedLM` and `BertForMaskedLM`."""

    supported = "their language heads"
    announces = False

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether it has such a head's submodules."""
        dense, norm = _head(module)
        return (
            is_plain(dense, nn.Linear)
            and is_norm(norm)
            and is_plain(_at(module, "decoder"), nn.Linear)
            and isinstance(getattr(module, "bias", None), nn.Parameter)
            and _head_activation(module) is not None
        )

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Nothing is refused."""
        del arguments
        return None

    def read(self) -> Head:
        """What there is before and after the normalization."""
        (dense, norm), decoder = _head(self.module), self.module.decoder
        bias = self.module.bias if decoder.bias is None else decoder.bias
        weights = HeadWeights(
            Linear.of(dense),
            str(_head_activation(self.module)),
            Norm.of(norm),
            Linear(decoder.weight, bias),
        )
        return Head(weights, self.dtype, self.backend)

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Any:
        """Logits [..., V] of hidden states [..., C]."""
        del begun
        return self.weights(next(iter(arguments.values())))

    def top(self, hidden: Tensor) -> TopLogit:
        """The largest logit of hidden states [..., C], and where it is, without the others."""
        return self.serve(
            lambda _, __: self.weights.top(hidden),
            lambda x: largest(self.original(x)),
            (hidden,),
            {},
        )


def _tells_its_embeddings_of_padding(module: nn.Module) -> bool:
    """Whether token dropout leaves padding out: transformers 4 forgets to hand the mask on.

    The names by which a function calls others are constants of its code.
    """
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    called = [c for c in getattr(code, "co_consts", ()) if isinstance(c, tuple)]
    return {"input_ids", "attention_mask", "position_ids"} in map(set, called) or not any(
        {"input_ids", "position_ids"} <= set(names) for names in called
    )


def _names(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()} if isinstance(module, nn.Module) else set()


def _at(module: Any, path: str) -> Any:
    """The submodule at a path, or None."""
    for name in filter(None, path.split(".")):
        module = getattr(module, name, None)
    return module


def _norm_first(layer: Any) -> bool:
    return _at(layer, "attention.LayerNorm") is not None


def _norms(layer: Any) -> tuple[nn.LayerNorm | None, nn.LayerNorm | None]:
    """Normalizations of the attention and of the network."""
    if _norm_first(layer):
        return layer.attention.LayerNorm, _at(layer, "LayerNorm")
    return _at(layer, "attention.output.LayerNorm"), _at(layer, "output.LayerNorm")


def _layer(layer: Any) -> Layer:
    attention, network = _norms(layer)
    assert attention is not None
    assert network is not None
    own = layer.attention.self
    return Layer(
        attention_norm=Norm.of(attention),
        qkv=Linear.of(own.query, own.key, own.value),
        out=Linear.of(layer.attention.output.dense),
        network_norm=Norm.of(network),
        up=Linear.of(layer.intermediate.dense),
        down=Linear.of(layer.output.dense),
    )


def _kind_of_positions(module: Any) -> str:
    """The name that the configuration has for position embeddings; BERT's has none any more."""
    return getattr(module.config, "position_embedding_type", None) or "absolute"


def _activation(module: Any) -> str | None:
    """That of the layers; ESM's configuration names one that its layers do not look at."""
    if _norm_first(module.encoder.layer[0]):
        return "gelu"
    return ACTIVATIONS.get(module.config.hidden_act)


def _frequencies(module: Any) -> Tensor:
    shared: Tensor | None = _at(module, "rotary_embeddings.inv_freq")
    if shared is None:
        shared = module.encoder.layer[0].attention.self.rotary_embeddings.inv_freq
    assert shared is not None
    return exact_frequencies(shared)


def _positions(ids: Tensor, padding: int) -> Tensor:
    """Positions [B, L] as ESM counts them: tokens that are no padding, from behind its number."""
    real = ids != padding
    return real.cumsum(1) * real + padding


def _head(module: Any) -> tuple[Any, Any]:
    if _at(module, "transform") is not None:
        return _at(module, "transform.dense"), _at(module, "transform.LayerNorm")
    return _at(module, "dense"), _at(module, "layer_norm")


def _head_activation(module: Any) -> str | None:
    transform = _at(module, "transform")
    if transform is None:
        return "gelu"
    name = type(transform.transform_act_fn).__name__
    return {"GELUActivation": "gelu", "NewGELUActivation": "gelu_tanh", "ReLU": "relu"}.get(name)
