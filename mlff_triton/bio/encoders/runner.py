"""Runs an encoder on padded batches of tokens: packs them, computes, and puts them back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton.bio.encoders.encoder import Embedding, Encoder, encode
from mlff_triton.bio.forward import Options
from mlff_triton.kernels.transformer.reference import token_embedding as reference
from mlff_triton.kernels.types.packed_rows import PackedRows

if TYPE_CHECKING:
    from mlff_triton.bio.graphs import Inputs

LARGE = 6e12  # operations of a forward from which it pays to wait for the number of tokens


class Tokens(NamedTuple):
    """A batch of sequences.

    Attributes
    ----------
    ids : int64 [B, L]
        Tokens.
    mask : [B, L] or None
        Not zero where there is one.
    positions, kinds : int64 [B, L] or None
        For the tables of positions and of types of tokens.
    """

    ids: Tensor
    mask: Tensor | None = None
    positions: Tensor | None = None
    kinds: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """B and L."""
        return self.ids.shape[0], self.ids.shape[1]


class Runner(Protocol):
    """Runs an encoder."""

    def begin(self, tokens: Tokens) -> Tensor | None:
        """Hidden states [B, L, C], if launching them takes next to nothing."""

    def __call__(
        self, tokens: Tokens, keep: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Hidden states [B, L, C] after the last layer and after some; zero without a token."""


class Plain:
    """Runs an encoder with PyTorch's operators, in the dtype of its weights.

    Parameters
    ----------
    encoder : Encoder
        Weights.
    dtype : torch.dtype
        Of what comes out.
    """

    def __init__(self, encoder: Encoder, dtype: torch.dtype) -> None:
        self._encoder, self._dtype = encoder, dtype

    def begin(self, tokens: Tokens) -> Tensor | None:
        """Nothing."""
        del tokens
        return None

    def __call__(
        self, tokens: Tokens, keep: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Hidden states [B, L, C] after the last layer and after some; zero without a token."""
        table, shape = self._encoder.embedding, tokens.shape
        x, packed = _embedded(reference.token_embedding, table, tokens)
        x = x if table.norm is None else table.norm(x)
        rows, kept = encode(self._encoder, x, packed, shape[1], keep)

        def unpacked(x: Tensor) -> Tensor:
            return reference.unpack_rows(x, packed.row_of, shape, dtype=self._dtype)

        return unpacked(rows), {number: unpacked(x) for number, x in kept.items()}


class Fused:
    """Runs an encoder with Triton kernels, as CUDA graphs of the shapes that come again.

    Parameters
    ----------
    encoder : Encoder
        Weights, of any dtype.
    dtype, out : torch.dtype
        What to compute in, and what comes out.
    options : Options
        Of the user.
    """

    def __init__(
        self, encoder: Encoder, dtype: torch.dtype, out: torch.dtype, options: Options
    ) -> None:
        from mlff_triton.bio.encoders.fused import FusedEncoder
        from mlff_triton.bio.graphs import Graphs

        self._encoder, self._out = FusedEncoder(encoder, dtype), out
        first = next(iter(encoder.layers))  # all are as large, and put together when asked for
        weights = sum(part.weight.numel() for part in first if part.weight.dim() > 1)
        self._work = 2 * weights * len(encoder.layers)
        on_gpu = encoder.embedding.word.is_cuda
        self._graphs = Graphs(self._hidden) if on_gpu and options.cuda_graph else None

    def begin(self, tokens: Tokens) -> Tensor | None:
        """Hidden states, if there is a graph for them that can be replayed at once."""
        if self._graphs is None or self._is_large(tokens) or is_capturing(tokens.ids):
            return None
        outputs = self._graphs.replay(tokens)
        return None if outputs is None else outputs[0]

    def __call__(
        self, tokens: Tokens, keep: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Hidden states [B, L, C] after the last layer and after some; zero without a token."""
        captured = is_capturing(tokens.ids)
        capacity = None
        if tokens.mask is not None and self._is_large(tokens) and not captured:
            capacity = _rounded(int(tokens.mask.count_nonzero()), tokens.ids.numel())
        if keep or captured or self._graphs is None:
            return self._compute(tokens, keep, capacity)
        return self._graphs(tokens, capacity)[0], {}

    def _hidden(self, tokens: Inputs, capacity: int | None) -> tuple[Tensor]:
        return (self._compute(Tokens(*tokens), (), capacity)[0],)  # type: ignore[arg-type]

    def _compute(
        self, tokens: Tokens, keep: Collection[int], capacity: int | None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        from mlff_triton.kernels.transformer.token_embedding import token_embedding, unpack_rows

        table, shape = self._encoder.embedding, tokens.shape
        options = {"norm": table.norm, "capacity": capacity}
        x, packed = _embedded(token_embedding, table, tokens, **options)
        rows, kept = self._encoder.run(x, self._encoder.places(packed, shape[1]), keep)

        def unpacked(
            x: Tensor, shift: Tensor | None, norm: tuple[Tensor, Tensor, float] | None
        ) -> Tensor:
            return unpack_rows(x, packed.row_of, shape, shift=shift, norm=norm, dtype=self._out)

        return unpacked(*rows), {number: unpacked(*each) for number, each in kept.items()}

    def _is_large(self, tokens: Tokens) -> bool:
        return tokens.ids.numel() * self._work > LARGE


def _rounded(count: int, most: int) -> int:
    """Rows for so many tokens: sixteen sizes an octave, so that few graphs serve them all."""
    step = max(128, 1 << max(0, count.bit_length() - 5))
    return min(most, -(-count // step) * step)


def _embedded(
    operator: Callable[..., tuple[Tensor, PackedRows]],
    table: Embedding,
    tokens: Tokens,
    **options: Any,
) -> tuple[Tensor, PackedRows]:
    """Rows of tokens by an operator or by its reference, and where they belong."""
    return operator(
        tokens.ids,
        table.word,
        tokens.mask,
        positions=tokens.positions,
        position_table=table.position,
        kinds=tokens.kinds,
        kind_table=table.kind,
        mask_token=table.mask_token,
        count_padding=table.count_padding,
        **options,
    )


def runner(
    encoder: Encoder, dtype: torch.dtype, out: torch.dtype, backend: str | None, options: Options
) -> Runner:
    """What runs an encoder with a back-end."""
    if backend == "triton":
        return Fused(encoder, dtype, out, options)
    return Plain(encoder.to(dtype), out)
