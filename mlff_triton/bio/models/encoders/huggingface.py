"""ESM-1b, ESM-2, BERT and their language heads, of Hugging Face's transformers from 4.50 on.

Models are recognized by their submodules, not by their classes, so transformers is not imported.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from mlff_triton.bio.core.fast_forward import FastForward, Options
from mlff_triton.bio.core.recognition import is_plain, is_unmodified
from mlff_triton.bio.core.settings import are_usual
from mlff_triton.bio.core.value_check import IndexCheck, ValueCheck
from mlff_triton.bio.models.encoders.batch_runner import BatchRunner, TokenBatch, make_runner
from mlff_triton.bio.models.encoders.language_head import HeadWeights, LanguageHead
from mlff_triton.bio.models.encoders.masks import MaskCheck, refused_values
from mlff_triton.bio.models.encoders.torch_modules import activation_of, is_norm
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

LIBRARY_ACTIVATIONS = "transformers.activations"
ACTIVATIONS = {  # classes of that module, besides PyTorch's own
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "SiLUActivation": "silu",
}
SUPPORTED_ARGUMENTS = {"input_ids", "attention_mask", "token_type_ids", "return_dict"}
OUTPUT = "BaseModelOutputWithPoolingAndCrossAttentions"
QUERY = "attention.self.query"
LINEAR_MAPS = (
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    *(f"{name}.dense" for name in ("attention.output", "intermediate", "output")),
)
KNOWN_SUBMODULES = {  # of a model and of its submodules, in all versions of transformers
    "": {"embeddings", "encoder", "rotary_embeddings", "pooler", "contact_head"},
    "encoder": {"layer", "emb_layer_norm_after"},
    "embeddings": {
        *("word_embeddings", "position_embeddings", "token_type_embeddings"),
        *("LayerNorm", "layer_norm", "dropout"),
    },
}


class ReadyEncoder(NamedTuple):
    """Encoder that is ready to run.

    Attributes
    ----------
    runner : BatchRunner
        Runs the encoder.
    padding : int or None
        Padding token, if positions are counted from the other tokens, as in ESM-1b.
    """

    runner: BatchRunner
    padding: int | None


class EncoderForward(FastForward[ReadyEncoder]):
    """Forward of `EsmModel` and `BertModel`."""

    supported = "ESM-1b, ESM-2 and BERT encoders of transformers"
    watches = (
        "eps",
        "approximate",
        "intermediate_act_fn",
        "padding_idx",
        "token_dropout",
        "mask_token_id",
    )
    zeroes_padding = True

    def __init__(self, module: nn.Module, options: Options, model: nn.Module | None = None) -> None:
        super().__init__(module, options, model)
        whole = module if model is None else model
        self._mask_check = MaskCheck(any(map(_reads_first_token, whole.modules())))
        self._id_check = IndexCheck("input_ids")
        self._kind_check = IndexCheck("token_type_ids")

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for an encoder, not a decoder, with known submodules and no others.

        Subclasses and modules with a ``forward`` of their own may compute anything.
        """
        config = getattr(module, "config", None)
        layers = _at(module, "encoder.layer")
        if config is None or not isinstance(layers, nn.ModuleList) or not len(layers):
            return False
        words = _at(module, "embeddings.word_embeddings")
        return (
            all(_names(_at(module, path)) <= names for path, names in KNOWN_SUBMODULES.items())
            and is_plain(words, nn.Embedding)
            and words.embedding_dim == config.hidden_size
            and all(table.max_norm is None for table in _tables(_at(module, "embeddings")))
            and all(
                is_plain(_at(layer, path), nn.Linear) for layer in layers for path in LINEAR_MAPS
            )
            and all(_at(layer, QUERY).out_features == config.hidden_size for layer in layers)
            and all(is_norm(norm) for layer in layers for norm in _norms(layer))
            and _is_of_library(module)
            and are_usual(layers, config, watches=cls.watches)
            and are_usual([_at(module, "embeddings")], config, watches=cls.watches)
            and getattr(_at(module, "rotary_embeddings"), "attention_scaling", 1) == 1
            and not getattr(config, "is_decoder", False)
            and _position_type(module) in ("absolute", "rotary")
            and _activation(module) is not None
        )

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse all arguments but tokens, token types and masks [B, L]."""
        requested = [
            name
            for name, value in arguments.items()
            if name not in SUPPORTED_ARGUMENTS and value is not None and value is not False
        ]
        config = self.module.config
        in_config = ("output_attentions", "output_hidden_states", "is_decoder")
        requested += [name for name in in_config if getattr(config, name, False)]
        if requested:
            return f"{requested[0]} is not supported"
        ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
        if ids is None or ids.dim() != 2:
            return "input_ids of shape [B, L] are required"
        if mask is not None and mask.shape != ids.shape:
            return f"attention_mask has shape {list(mask.shape)} instead of [B, L]"
        kinds = arguments.get("token_type_ids")
        if kinds is not None and not self._are_kinds(kinds, ids):
            return f"token_type_ids of shape {list(kinds.shape)} are not supported"
        if ids.shape[1] > self._longest():
            return f"the model has positions for {self._longest()} tokens at most"
        return refused_values(self._checks(arguments))

    def _checks(self, arguments: Mapping[str, Any]) -> list[tuple[ValueCheck, Tensor]]:
        """Return the checks of inputs' values; padding counts, although it is not looked up."""
        mask, kinds = arguments.get("attention_mask"), arguments.get("token_type_ids")
        parts = self.module.embeddings
        self._id_check = self._id_check.of(_n_rows(parts, "word_embeddings"))
        checks: list[tuple[ValueCheck, Tensor]] = [(self._id_check, arguments["input_ids"])]
        if mask is not None:
            checks.append((self._mask_check, mask))
        if kinds is not None:
            self._kind_check = self._kind_check.of(_n_rows(parts, "token_type_embeddings"))
            checks.append((self._kind_check, kinds))
        return checks

    def _longest(self) -> float:
        """Return the number of tokens for which positions are guaranteed."""
        if _position_type(self.module) != "absolute":
            return math.inf
        padding = getattr(self.module.embeddings, "padding_idx", None)
        n_positions = len(self.module.embeddings.position_embeddings.weight)
        return n_positions if padding is None else n_positions - padding - 1

    def _are_kinds(self, kinds: Tensor, ids: Tensor) -> bool:
        """Return True for types of the tokens, or of the tokens of one sequence for all."""
        has_table = getattr(self.module.embeddings, "token_type_embeddings", None) is not None
        return has_table and kinds.shape in (ids.shape, (1, ids.shape[1]))

    def read(self) -> ReadyEncoder:
        """Read the present weights."""
        out = self.parameter.dtype
        absolute = _position_type(self.module) == "absolute"
        return ReadyEncoder(
            make_runner(self._encoder(), self.dtype, out, self.backend, self.options),
            getattr(self.module.embeddings, "padding_idx", None) if absolute else None,
        )

    def _encoder(self) -> EncoderWeights:
        module, config = self.module, self.module.config
        parts = module.embeddings
        norm = getattr(parts, "LayerNorm", None) or getattr(parts, "layer_norm", None)
        absolute = _position_type(module) == "absolute"
        kinds = getattr(parts, "token_type_embeddings", None)
        embedding = Embedding(
            word=parts.word_embeddings.weight,
            position=parts.position_embeddings.weight if absolute else None,
            kind=None if kinds is None else kinds.weight,
            norm=None if norm is None else Norm.of(norm),
            mask_token=parts.mask_token_id if getattr(parts, "token_dropout", False) else None,
            count_padding=not _passes_mask_to_embeddings(module),
        )
        last = getattr(module.encoder, "emb_layer_norm_after", None)
        return EncoderWeights(
            embedding=embedding,
            layers=LazyLayers(_layer, module.encoder.layer),
            heads=config.hidden_size // module.encoder.layer[0].attention.self.attention_head_size,
            norm_first=_norm_first(module.encoder.layer[0]),
            activation=str(_activation(module)),
            frequencies=None if absolute else _frequencies(module),
            norm=None if last is None else Norm.of(last),
        )

    def begin(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """Queue the check of the mask, and replay the graph for the batch's shape, if any."""
        ids, mask = arguments.get("input_ids"), arguments.get("attention_mask")
        if ids is None or ids.dim() != 2 or not arguments.keys() <= SUPPORTED_ARGUMENTS:
            return None
        kinds = arguments.get("token_type_ids")
        if mask is not None and mask.shape != ids.shape:
            return None
        if kinds is not None and not self._are_kinds(kinds, ids):
            return None
        for check, tensor in self._checks(arguments):
            check.queue(tensor)
        return self.weights.runner.begin(self._tokens(arguments))

    def compute(self, arguments: Mapping[str, Any], begun: Tensor | None) -> Any:
        """Return the hidden states of all tokens, zero for padding, and the pooled output."""
        module = self.module
        hidden = begun
        if hidden is None:
            hidden, _ = self.weights.runner(self._tokens(arguments))
        pooler = getattr(module, "pooler", None)
        pooled = None if pooler is None else pooler(hidden)
        output = getattr(sys.modules[type(module).__module__], OUTPUT)(
            last_hidden_state=hidden, pooler_output=pooled
        )
        return_dict = arguments.get("return_dict")
        if return_dict is None:
            return_dict = getattr(module.config, "return_dict", True)
        if return_dict:
            return output
        # Versions that take it as an argument give None for a pooler that is missing.
        own = inspect.signature(inspect.unwrap(type(module).forward)).parameters
        return (hidden, pooled) if "return_dict" in own else output.to_tuple()

    def _tokens(self, arguments: Mapping[str, Any]) -> TokenBatch:
        ids = arguments["input_ids"]
        padding = self.weights.padding
        positions = None if padding is None else _positions(ids, padding)
        kinds = arguments.get("token_type_ids")
        return TokenBatch(
            ids,
            arguments.get("attention_mask"),
            positions,
            None if kinds is None else kinds.expand(ids.shape),
        )


class LanguageHeadForward(FastForward[LanguageHead]):
    """Forward of the language heads of `EsmForMaskedLM` and `BertForMaskedLM`."""

    supported = "their language heads"
    watches = ("eps", "approximate", "transform_act_fn")
    announces = False

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a module with the submodules of a language head."""
        dense, norm = _head(module)
        decoder = _at(module, "decoder")
        adds_bias = _at(module, "transform") is None  # as ESM does, to what its decoder returns
        return (
            is_plain(dense, nn.Linear)
            and is_norm(norm)
            and is_plain(decoder, nn.Linear)
            and (decoder.bias is None) == adds_bias
            and isinstance(getattr(module, "bias", None), nn.Parameter)
            and _is_of_library(module)
            and _head_activation(module) is not None
        )

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse nothing."""
        del arguments
        return None

    def read(self) -> LanguageHead:
        """Read the present weights."""
        (dense, norm), decoder = _head(self.module), self.module.decoder
        bias = self.module.bias if decoder.bias is None else decoder.bias
        weights = HeadWeights(
            Linear.of(dense),
            str(_head_activation(self.module)),
            Norm.of(norm),
            Linear(decoder.weight, bias),
        )
        return LanguageHead(weights, self.dtype, self.backend)

    def compute(self, arguments: Mapping[str, Any], begun: None) -> Any:
        """Return the logits [..., V] of hidden states [..., C]."""
        del begun
        return self.weights(next(iter(arguments.values())))

    def top(self, hidden: Tensor) -> TopLogit:
        """Return the largest logit of hidden states [..., C] and its index."""
        return self.serve(
            lambda _, __: self.weights.top(hidden),
            lambda x: largest(self.original(x)),
            (hidden,),
            {},
        )


def _is_of_library(module: nn.Module) -> bool:
    """Return True for a model of transformers whose submodules are all from the same file."""
    source = type(module).__module__
    is_library = source.startswith("transformers.") and hasattr(sys.modules[source], OUTPUT)
    return is_library and is_unmodified(module, source, LIBRARY_ACTIVATIONS)


def _reads_first_token(module: nn.Module) -> bool:
    """Return True if a model of transformers classifies or pools by each first token."""
    return hasattr(module, "classifier") or getattr(module, "pooler", None) is not None


def _passes_mask_to_embeddings(module: nn.Module) -> bool:
    """Return True if token dropout excludes padding.

    Some versions of transformers, such as 4.57 and 5.0, do not pass the attention mask on to the
    embeddings. Keywords used in a function's calls are constants of its code, which distinguishes
    the versions.
    """
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    called = [set(c) for c in getattr(code, "co_consts", ()) if isinstance(c, tuple)]
    embeds = [names for names in called if {"input_ids", "position_ids"} <= names]
    return all("attention_mask" in names for names in embeds)


def _names(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()} if isinstance(module, nn.Module) else set()


def _at(module: Any, path: str) -> Any:
    """Return the submodule at a path, or None."""
    for name in filter(None, path.split(".")):
        module = getattr(module, name, None)
    return module


def _tables(embeddings: Any) -> list[nn.Embedding]:
    return [table for table in embeddings.children() if isinstance(table, nn.Embedding)]


def _n_rows(embeddings: Any, name: str) -> int:
    """Return the number of rows of a table, or a large one if somebody has replaced it."""
    weight = _at(embeddings, f"{name}.weight")
    return sys.maxsize if weight is None else len(weight)


def _norm_first(layer: Any) -> bool:
    return _at(layer, "attention.LayerNorm") is not None


def _norms(layer: Any) -> tuple[nn.LayerNorm | None, nn.LayerNorm | None]:
    """Return the normalizations of the attention and of the network."""
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


def _position_type(module: Any) -> str:
    """Return the type of position embeddings; recent configurations of BERT do not name it."""
    return getattr(module.config, "position_embedding_type", None) or "absolute"


def _activation(module: Any) -> str | None:
    """Return the activation of all layers, or None if it is unknown or they differ."""
    layers = module.encoder.layer
    if _norm_first(layers[0]):
        return "gelu"  # a function that ESM calls
    found = {_called_activation(_at(layer, "intermediate.intermediate_act_fn")) for layer in layers}
    return found.pop() if len(found) == 1 else None


def _called_activation(called: Any) -> str | None:
    """Return the name of an activation of PyTorch or transformers; None if it is unknown."""
    kind = type(called)
    if kind.__module__ == LIBRARY_ACTIVATIONS:
        return ACTIVATIONS.get(kind.__name__)
    name = activation_of(called)
    return name if name in ("gelu", "gelu_tanh", "relu", "silu") else None


def _frequencies(module: Any) -> Tensor:
    shared: Tensor | None = _at(module, "rotary_embeddings.inv_freq")
    if shared is None:
        shared = module.encoder.layer[0].attention.self.rotary_embeddings.inv_freq
    assert shared is not None
    return exact_frequencies(shared)


def _positions(ids: Tensor, padding: int) -> Tensor:
    """Return ESM's positions [B, L], which count tokens other than padding from padding + 1."""
    real = ids != padding
    return real.cumsum(1) * real + padding


def _head(module: Any) -> tuple[Any, Any]:
    if _at(module, "transform") is not None:
        return _at(module, "transform.dense"), _at(module, "transform.LayerNorm")
    return _at(module, "dense"), _at(module, "layer_norm")


def _head_activation(module: Any) -> str | None:
    transform = _at(module, "transform")
    return "gelu" if transform is None else _called_activation(transform.transform_act_fn)
