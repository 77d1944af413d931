"""Tokens of proteins, by a model's tokenizer or by a table that gives the same tokens."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Tokens(NamedTuple):
    """Tokens of a padded batch of B sequences.

    Attributes
    ----------
    inputs : dict of str to Tensor
        Arguments of the model, int64 [B, L] each.
    is_residue : bool [B, L]
        True for residues, False for special tokens and padding.
    """

    inputs: dict[str, Tensor]
    is_residue: Tensor


MARKS = "\u2581\u0120#"  # of tokens that begin or continue a word
Encode = Callable[[Sequence[bytes]], Tokens]


class Tokenizer:
    """A tokenizer of Hugging Face's transformers, which is called with proteins.

    Parameters
    ----------
    tokenizer : object
        The tokenizer.

    Attributes
    ----------
    symbols : str
        Letters that it knows as residues.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._is_spaced = len(tokenizer.tokenize("MKV")) != len("MKV")  # as ProtBERT's
        self.symbols = "".join(filter(partial(_is_known, tokenizer), string.ascii_uppercase))

    def __call__(self, sequences: Sequence[bytes]) -> Tokens:
        """Return the tokens of sequences of any case."""
        texts = [sequence.decode("ascii", "replace").upper() for sequence in sequences]
        inputs = self._tokenizer(
            list(map(" ".join, texts)) if self._is_spaced else texts,
            padding=True,
            padding_side="right",  # positions may be counted from the left
            return_special_tokens_mask=True,
            return_tensors="pt",
        )
        is_special = inputs.pop("special_tokens_mask").bool() | (inputs["attention_mask"] == 0)
        return Tokens(dict(inputs), ~is_special)

    def fastest(self) -> Encode:
        """Return a table if it gives the tokens of this tokenizer, otherwise the tokenizer.

        They are compared for a padded batch of texts of many lengths, with all pairs of neighbors,
        each residue alone, and a text that is longer than some tokenizers read as one word.
        """
        symbols = self.symbols
        vocabulary = self._tokenizer.get_vocab()
        words = (token.strip(MARKS).upper() for token in vocabulary)
        if any(len(word) > 1 and set(symbols).issuperset(word) for word in words):
            return self
        table = self._table()
        texts = ["".join(a + b for b in symbols) for a in symbols]
        texts += [symbols[k:] for k in range(len(symbols))] + list(symbols) + ["".join(texts)]
        sequences = [text.encode() for text in texts]
        return table if _are_equal(table(sequences), self(sequences)) else self

    def _table(self) -> Table:
        """Return the table of a tokenizer that has one token per residue."""
        inputs, (is_residue,) = self([self.symbols.encode()])
        tokens = inputs["input_ids"][0]
        first, last = is_residue.nonzero().flatten()[[0, -1]].tolist()
        ids = np.zeros(256, np.int64)
        for symbol, token in zip(self.symbols, tokens[is_residue].tolist(), strict=False):
            ids[[ord(symbol), ord(symbol.lower())]] = token
        before, after = tokens[:first].numpy(), tokens[last + 1 :].numpy()
        has_types = "token_type_ids" in inputs
        return Table(ids, before, after, self._tokenizer.pad_token_id, has_types)


@dataclass(frozen=True)
class Table:
    """Tokens of residues, special tokens around a sequence, and padding behind them.

    Attributes
    ----------
    ids : int64 [256]
        Token of each symbol, by its code in ASCII.
    before, after : int64 arrays
        Special tokens before and after a sequence.
    padding : int
        Token of padding.
    has_types : bool
        True if the model is given types of tokens, which are zero.
    """

    ids: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    padding: int
    has_types: bool

    def __call__(self, sequences: Sequence[bytes]) -> Tokens:
        """Return the tokens of sequences that consist of known symbols."""
        lengths = np.array(list(map(len, sequences)))
        begin, end = len(self.before), len(self.before) + lengths[:, None]
        position = np.arange(end.max() + len(self.after))
        is_residue = (position >= begin) & (position < end)
        ids = np.full(is_residue.shape, self.padding, np.int64)
        ids[:, :begin] = self.before
        ids[is_residue] = self.ids[np.frombuffer(b"".join(sequences), np.uint8)]
        ids[np.arange(len(ids))[:, None], end + np.arange(len(self.after))] = self.after
        is_token = position < end + len(self.after)
        inputs = {"input_ids": ids, "attention_mask": is_token.astype(np.int64)}
        if self.has_types:
            inputs["token_type_ids"] = np.zeros_like(ids)
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        return Tokens(tensors, torch.from_numpy(is_residue))


def _is_known(tokenizer: Any, symbol: str) -> bool:
    """Return True if a symbol is a token of its own."""
    tokens = tokenizer(symbol, add_special_tokens=False)["input_ids"]
    return len(tokens) == 1 and tokens[0] != tokenizer.unk_token_id


def _are_equal(one: Tokens, other: Tokens) -> bool:
    """Return True if all tokens are equal, and the arguments of a model have the same names."""
    return (
        one.inputs.keys() == other.inputs.keys()
        and torch.equal(one.is_residue, other.is_residue)
        and all(torch.equal(one.inputs[name], other.inputs[name]) for name in one.inputs)
    )
