"""Tokens of proteins by a table: those of tokenizers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlff_triton.bio.tokens import Table, Tokenizer
from tests.support.huggingface import BERT_TOKENS, bert_tokenizer, esm_tokenizer, transformers

# Of tokenizers, for how some versions of transformers read a vocabulary
pytestmark = pytest.mark.filterwarnings("ignore:Deprecated in 0.9.0")

RESIDUES = "".join(BERT_TOKENS[5:])
MAKERS = {"ESM": esm_tokenizer, "ProtBERT": bert_tokenizer}


@pytest.fixture(params=MAKERS)
def tokenizer(request, tmp_path):
    return MAKERS[request.param](tmp_path)


def check(encode, tokenizer, sequences):
    """Check that tokens are those of the tokenizer itself."""
    is_spaced = isinstance(tokenizer, transformers.BertTokenizer | transformers.BertTokenizerFast)
    texts = [(" " if is_spaced else "").join(sequence.upper()) for sequence in sequences]
    expected = dict(
        tokenizer(texts, padding=True, return_special_tokens_mask=True, return_tensors="pt")
    )
    is_special = expected.pop("special_tokens_mask").bool()
    found = encode([sequence.encode() for sequence in sequences])
    assert found.inputs.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found.inputs[name].dtype == tensor.dtype
        assert torch.equal(found.inputs[name], tensor), name
    assert torch.equal(found.is_residue, ~is_special & expected["attention_mask"].bool())


@pytest.mark.parametrize("seed", range(8))
def test_a_table_gives_the_tokens_of_the_tokenizer(tokenizer, seed):
    rng = np.random.default_rng(seed)
    symbols = list(RESIDUES + RESIDUES.lower())
    lengths = [*rng.integers(1, 61, seed), 60, 1]
    sequences = ["".join(rng.choice(symbols, length)) for length in lengths]
    wrapped = Tokenizer(tokenizer)
    assert sorted(wrapped.symbols) == sorted(RESIDUES)
    table = wrapped.fastest()
    assert isinstance(table, Table)
    check(table, tokenizer, sequences)
    check(table, tokenizer, sequences[-1:])
    check(table, tokenizer, [RESIDUES, RESIDUES.lower()])


def with_context(tokenizer):
    """Return a tokenizer that has another token for a residue behind a certain one."""

    class WithContext(type(tokenizer)):
        def tokenize(self, text, **options):
            return super().tokenize(text.replace("MK", "MX"), **options)

    tokenizer.__class__ = WithContext
    return tokenizer


def padded_left(tokenizer):
    """Return a tokenizer that puts padding before sequences."""
    tokenizer.padding_side = "left"
    return tokenizer


def with_last(tokenizer):
    """Return a tokenizer that has another token for a residue without neighbors."""

    class WithLast(type(tokenizer)):
        def tokenize(self, text, **options):
            return super().tokenize("X" if text == "K" else text, **options)

    tokenizer.__class__ = WithLast
    return tokenizer


def with_short_words(tokenizer):
    """Return a tokenizer that does not know long words, as WordPiece."""

    class WithShortWords(type(tokenizer)):
        def tokenize(self, text, **options):
            return super().tokenize(text if len(text) <= 100 else "<unk>", **options)

    tokenizer.__class__ = WithShortWords
    return tokenizer


@pytest.mark.parametrize("change", [with_context, with_last, with_short_words])
def test_other_tokenizers_have_no_table(tmp_path, change):
    tokenizer = change(esm_tokenizer(tmp_path))
    wrapped = Tokenizer(tokenizer)
    assert wrapped.fastest() is wrapped
    check(wrapped, tokenizer, ["M", "MKV", "ACDEFGHIKMK"])


def test_padding_is_behind_sequences(tmp_path):
    tokenizer = padded_left(esm_tokenizer(tmp_path))
    wrapped = Tokenizer(tokenizer)
    for encode in (wrapped, wrapped.fastest()):
        tokens = encode([b"M", b"MKV"])
        assert tokens.is_residue.tolist() == [[0, 1, 0, 0, 0], [0, 1, 1, 1, 0]]
        assert tokens.inputs["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5]


def test_a_tokenizer_with_tokens_of_several_residues_has_no_table(tmp_path):
    wrapped = Tokenizer(esm_tokenizer(tmp_path, ["LAG"]))
    assert wrapped.fastest() is wrapped
