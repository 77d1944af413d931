"""Small random models of Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.language_models import randomize

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 40,
}
ESM2 = {
    "vocab_size": 33,
    "pad_token_id": 1,
    "mask_token_id": 32,
    "position_embedding_type": "rotary",
    "token_dropout": True,
}
ESM1B = ESM2 | {"position_embedding_type": "absolute", "emb_layer_norm_before": True}
CLASSES = ESM2 | {"num_labels": 16}
PLAIN = ESM2 | {"token_dropout": False}  # as in later models with this architecture


ESM_TOKENS = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-"]
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"LAGVESIKRDTPNQFYMHCWXUBZO"]

Make = Callable[..., nn.Module]


def esm_tokenizer(folder: Path, more: Sequence[str] = ("<null_1>",)) -> Any:
    """Write the tokenizer of ESM into a folder, and load it from there."""
    (folder / "vocab.txt").write_text("\n".join([*ESM_TOKENS, *more, "<mask>"]))
    transformers.EsmTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def bert_tokenizer(folder: Path) -> Any:
    """Write the tokenizer of ProtBERT into a folder, and load it from there."""
    (folder / "vocab.txt").write_text("\n".join(BERT_TOKENS))
    vocabulary = str(folder / "vocab.txt")
    transformers.BertTokenizer(vocabulary, do_lower_case=False).save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def esm(name: str, options: dict[str, Any] = ESM2, **arguments: Any) -> Make:
    """Return a function that makes an ESM of a class."""
    return lambda **more: getattr(transformers, name)(
        transformers.EsmConfig(**(SIZES | options | more)), **arguments
    )


def bert(name: str, **options: Any) -> Make:
    """Return a function that makes a BERT of a class."""
    return lambda **more: getattr(transformers, name)(
        transformers.BertConfig(**(SIZES | {"vocab_size": 30} | options | more))
    )


MODELS: dict[str, Make] = {
    "EsmModel": esm("EsmModel"),
    "EsmModel without a pooler": esm("EsmModel", add_pooling_layer=False),
    "EsmModel, no token dropout": esm("EsmModel", PLAIN),
    "EsmModel, ESM-1b": esm("EsmModel", ESM1B),
    "EsmForMaskedLM": esm("EsmForMaskedLM"),
    "EsmForMaskedLM, ESM-1b": esm("EsmForMaskedLM", ESM1B),
    "EsmForSequenceClassification": esm("EsmForSequenceClassification", CLASSES),
    "EsmForTokenClassification": esm("EsmForTokenClassification", CLASSES),
    "BertModel": bert("BertModel"),
    "BertForMaskedLM": bert("BertForMaskedLM"),
    "BertForMaskedLM, ReLU": bert("BertForMaskedLM", hidden_act="relu"),
    "BertForMaskedLM, GELU by tanh": bert("BertForMaskedLM", hidden_act="gelu_new"),
}


def make(name: str, device: str, dtype: torch.dtype = torch.float64, **options: Any) -> nn.Module:
    return randomize(MODELS[name](**options), device, dtype)
