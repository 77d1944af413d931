"""Runners of encoders on padded batches: pack the tokens, compute packed rows, unpack them."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from mlff_triton._common.cuda_graphs import is_capturing
from mlff_triton.bio.core.fast_forward import Options
from mlff_triton.bio.core.first_launch import before_first_launch
from mlff_triton.bio.core.graph_cache import GraphCache, Inputs
from mlff_triton.bio.models.encoders.packed_forward_torch import encode
from mlff_triton.bio.models.encoders.weights import Embedding, EncoderWeights, Norm
from mlff_triton.kernels.transformer.protocol import TransformerOperators
from mlff_triton.kernels.transformer.reference import operators as reference
from mlff_triton.kernels.transformer.types import PackedRows

# Operations per forward pass above which waiting for the number of tokens pays.
LARGE = 6e12


class TokenBatch(NamedTuple):
    """Padded batch of tokens.

    Attributes
    ----------
    ids : int64 [B, L]
        Tokens.
    mask : [B, L] or None
        Nonzero for tokens, zero for padding.
    positions, kinds : int64 [B, L] or None
        Rows of the tables of positions and of token types.
    """

    ids: Tensor
    mask: Tensor | None = None
    positions: Tensor | None = None
    kinds: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Batch size B and sequence length L."""
        return self.ids.shape[0], self.ids.shape[1]


class BatchRunner(Protocol):
    """Runs an encoder on padded batches."""

    def begin(self, tokens: TokenBatch) -> Tensor | None:
        """Launch the forward pass if that takes next to no time; return hidden states [B, L, C]."""

    def __call__(
        self, tokens: TokenBatch, keep: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return hidden states [B, L, C], zero for padding.

        The first are those after the last layer, the others those after the layers in ``keep``.
        """


class TorchRunner:
    """Runs an encoder with PyTorch's operators, in the dtype of its weights.

    Parameters
    ----------
    encoder : EncoderWeights
        Weights of the encoder.
    dtype : torch.dtype
        Dtype of the hidden states that are returned.
    """

    def __init__(self, encoder: EncoderWeights, dtype: torch.dtype) -> None:
        self._encoder, self._dtype = encoder, dtype

    def begin(self, tokens: TokenBatch) -> Tensor | None:
        """Return None: there is nothing to launch ahead."""
        del tokens
        return None

    def __call__(
        self, tokens: TokenBatch, keep: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return hidden states [B, L, C], as described in `BatchRunner`."""
        table, shape = self._encoder.embedding, tokens.shape
        x, packed = _embed(reference, table, tokens)
        x = x if table.norm is None else table.norm(x)
        rows, kept = encode(self._encoder, x, packed, shape[1], keep)

        def unpack(x: Tensor) -> Tensor:
            return reference.unpack_rows(x, packed.row_of, shape, dtype=self._dtype)

        return unpack(rows), {number: unpack(x) for number, x in kept.items()}


class TritonRunner:
    """Runs an encoder with Triton kernels, in CUDA graphs for shapes that occur again.

    Parameters
    ----------
    encoder : EncoderWeights
        Weights of any dtype.
    dtype, out : torch.dtype
        Dtypes of the computation and of the hidden states that are returned.
    options : Options
        Options chosen by the user.
    """

    def __init__(
        self, encoder: EncoderWeights, dtype: torch.dtype, out: torch.dtype, options: Options
    ) -> None:
        from mlff_triton.bio.models.encoders.packed_forward_triton import TritonEncoder

        self._encoder, self._out = TritonEncoder(encoder, dtype), out
        first = next(iter(encoder.layers))  # all layers have the same sizes
        weights = sum(part.weight.numel() for part in first if part.weight.dim() > 1)
        self._operations_per_token = 2 * weights * len(encoder.layers)
        shapes = tuple(part.weight.shape for part in first)
        self._kind = TritonRunner, dtype, out, encoder.heads, encoder.activation, shapes
        on_gpu = encoder.embedding.word.is_cuda
        self._graphs = GraphCache(self._hidden) if on_gpu and options.cuda_graph else None

    def begin(self, tokens: TokenBatch) -> Tensor | None:
        """Replay the graph for the batch's shape, if there is one; return its hidden states."""
        if self._graphs is None or self._is_large(tokens):
            return None
        outputs = self._graphs.replay(tokens)
        return None if outputs is None else outputs[0]

    def __call__(
        self, tokens: TokenBatch, keep: Collection[int] = ()
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return hidden states [B, L, C], as described in `BatchRunner`."""
        capacity = None
        if tokens.mask is not None and self._is_large(tokens) and not is_capturing(tokens.ids):
            capacity = _round_up(int(tokens.mask.count_nonzero()), tokens.ids.numel())
        before_first_launch(
            "triton",
            (self._kind, *_sizes(tokens, capacity), bool(keep)),
            tokens.ids,
            lambda: self._compute(tokens, keep, capacity),
        )
        if keep or self._graphs is None:
            return self._compute(tokens, keep, capacity)
        return self._graphs(tokens, capacity)[0], {}

    def _hidden(self, tokens: Inputs, capacity: int | None) -> tuple[Tensor]:
        return (self._compute(TokenBatch(*tokens), (), capacity)[0],)  # type: ignore[arg-type]

    def _compute(
        self, tokens: TokenBatch, keep: Collection[int], capacity: int | None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        from mlff_triton.kernels.transformer import operators

        table, shape = self._encoder.embedding, tokens.shape
        options = {"norm": table.norm, "capacity": capacity}
        x, packed = _embed(operators, table, tokens, **options)
        rows, kept = self._encoder.encode(x, self._encoder.layout(packed, shape[1]), keep)

        def unpack(x: Tensor, shift: Tensor | None, norm: Norm | None) -> Tensor:
            return operators.unpack_rows(
                x, packed.row_of, shape, shift=shift, norm=norm, dtype=self._out
            )

        return unpack(*rows), {number: unpack(*each) for number, each in kept.items()}

    def _is_large(self, tokens: TokenBatch) -> bool:
        return tokens.ids.numel() * self._operations_per_token > LARGE


def _sizes(tokens: TokenBatch, capacity: int | None) -> tuple[Hashable, ...]:
    """Return what kernels are chosen by: which inputs there are, and the magnitudes of sizes."""
    given = tuple(part is not None for part in tokens)
    rows = tokens.ids.numel() if capacity is None else capacity
    return given, capacity is None, tokens.shape[1].bit_length(), rows.bit_length()


def _round_up(count: int, limit: int) -> int:
    """Round a number of rows up to one of 16 sizes per octave, so that few graphs serve all."""
    step = max(128, 1 << max(0, count.bit_length() - 5))
    return min(limit, -(-count // step) * step)


def _embed(
    operators: TransformerOperators,
    table: Embedding,
    tokens: TokenBatch,
    **options: Any,
) -> tuple[Tensor, PackedRows]:
    """Embed tokens as packed rows with the operators of a backend."""
    return operators.token_embedding(
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


def make_runner(
    encoder: EncoderWeights,
    dtype: torch.dtype,
    out: torch.dtype,
    backend: str | None,
    options: Options,
) -> BatchRunner:
    """Make the runner of a backend; see `TritonRunner` for the parameters."""
    if backend == "triton":
        return TritonRunner(encoder, dtype, out, options)
    return TorchRunner(encoder.to(dtype), out)
