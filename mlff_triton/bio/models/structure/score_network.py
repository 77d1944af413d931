"""One step of a network that removes noise from atoms, given the results of a trunk.

What does not depend on positions and noise levels is prepared once for all steps: embedded tokens,
the conditions of atoms, and all biases, in the layout in which attention reads them.

Source: J. Abramson et al., "Accurate structure prediction of biomolecular interactions with
AlphaFold 3", https://doi.org/10.1038/s41586-024-07487-w, algorithms 5 to 7 and 20 to 22 of the
supplement.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, layer_norm, pad, relu, silu

from mlff_triton.bio.models.structure.diffusion import (
    DiffusionWeights,
    all_conditions,
    update_by_terms,
    update_samples,
)
from mlff_triton.kernels.pairs.protocol import PairOperators
from mlff_triton.kernels.pairs.types import Conditions, TransitionWeights, WindowConditions
from mlff_triton.kernels.types.norm import Norm


class ConditionWeights(NamedTuple):
    """Weights that embed tokens and noise levels as conditions of S channels.

    Attributes
    ----------
    norm : Norm
        Normalization of tokens.
    embedding, embedding_bias : [S, I], [S] or None
        Map of normalized tokens.
    frequency, phase : [F]
        Frequencies and phases of the Fourier features of noise levels.
    time_norm : Norm
        Normalization of Fourier features.
    time : [S, F]
        Map of normalized Fourier features.
    transitions : list of TransitionWeights
        Transitions of the sum.
    """

    norm: Norm
    embedding: Tensor
    embedding_bias: Tensor | None
    frequency: Tensor
    phase: Tensor
    time_norm: Norm
    time: Tensor
    transitions: list[TransitionWeights]


class AtomMaps(NamedTuple):
    """Maps from and to atoms of A channels.

    Attributes
    ----------
    positions : [A, 3]
        Map of noisy positions.
    pool : [C, A]
        Map of atoms to tokens.
    token_norm, token : Norm, [C, S]
        Normalization and map of conditions, added to tokens.
    last_norm, spread : Norm, [A, C]
        Normalization and map of tokens, added to atoms.
    output_norm, output : Norm or None, [3, A]
        Normalization and map of atoms to the update of positions.
    """

    positions: Tensor
    pool: Tensor
    token_norm: Norm
    token: Tensor
    last_norm: Norm
    spread: Tensor
    output_norm: Norm | None
    output: Tensor


class ScoreWeights(NamedTuple):
    """Weights of the network."""

    conditions: ConditionWeights
    maps: AtomMaps
    encoder: DiffusionWeights
    tokens: DiffusionWeights
    decoder: DiffusionWeights


class TrunkResults(NamedTuple):
    """Results of a trunk, which all steps of a run have in common.

    Attributes
    ----------
    tokens : [B, N, I]
        Tokens of the trunk and of the inputs, joined.
    atoms, atom_conditions : [B, M, A]
        Atoms without positions, and their conditions.
    encoder_biases, decoder_biases : [L, B, W, H, Q, T]
        Biases of queries and keys in windows of atoms, for all layers.
    token_biases : [L, B, H, N, N]
        Biases of tokens, for all layers.
    token_mask, atom_mask : [B, N], [B, M], or None
        1 for tokens and atoms, 0 for padding; None without padding.
    token_of_atom : int64 [B, M]
        Token of each atom; N for atoms of none.
    """

    tokens: Tensor
    atoms: Tensor
    atom_conditions: Tensor
    encoder_biases: Tensor
    decoder_biases: Tensor
    token_biases: Tensor
    token_mask: Tensor | None
    atom_mask: Tensor | None
    token_of_atom: Tensor


class Pooling(NamedTuple):
    """Means over the atoms of tokens.

    Attributes
    ----------
    order : int64 [B, M]
        Atoms in the order of their tokens; those of no token last.
    begin : int64 [B, N]
        Index of the first atom of a token in this order.
    weight : [B, M]
        Weights of atoms in this order.
    """

    order: Tensor
    begin: Tensor
    weight: Tensor

    @classmethod
    def of(
        cls, token_of_atom: Tensor, n_tokens: int, dtype: torch.dtype, eps: float = 1e-6
    ) -> Pooling:
        """Sort the atoms by tokens; ``eps`` is added to the number of atoms in each mean."""
        tokens, order = token_of_atom.sort(dim=-1, stable=True)
        edges = torch.arange(n_tokens + 1, device=tokens.device).expand(len(tokens), -1)
        begin = torch.searchsorted(tokens, edges.contiguous())
        counts = pad(begin.diff(), (0, 1)).to(dtype)
        weights = (1 / (counts + eps)).gather(1, tokens).masked_fill(tokens == n_tokens, 0)
        return cls(order, begin[:, :-1].contiguous(), weights)

    def __call__(self, atoms: Tensor) -> Tensor:
        """Return means [B, R, N, C] of atoms [B, R, M, C]."""
        batch, rows, n_atoms = atoms.shape[:3]
        first = torch.arange(batch * rows, device=atoms.device).view(batch, rows, 1) * n_atoms
        means = embedding_bag(
            (self.order[:, None] + first).flatten(),
            atoms.flatten(0, 2),
            (self.begin[:, None] + first).flatten(),
            mode="sum",
            per_sample_weights=self.weight.to(atoms.dtype).repeat_interleave(rows, 0).flatten(),
        )
        return means.view(batch, rows, -1, means.shape[-1])


class Prepared(NamedTuple):
    """Intermediate results that all steps of a run have in common; see `TrunkResults` for axes.

    Attributes
    ----------
    tokens : [B, N, S]
        Embedded tokens, to which noise levels are added.
    atoms : [B, M, A]
        Atoms without positions.
    encoder_terms, decoder_terms : tuple of Conditions and WindowConditions
        Terms of the updates of atoms, which samples share.
    encoder_biases, decoder_biases : tuple of [B, W, H, Q, T], or in one tensor
        Biases of atoms in each layer.
    token_biases : tuple of [B, H, N, N], or in one tensor
        Biases of tokens in each layer.
    token_mask, atom_mask : [B, 1, N], [B, 1, M], or None
        Nonzero for tokens and atoms, zero for padding.
    pooling : Pooling
        Means over the atoms of tokens.
    place : int64 [B, 1, M, 1]
        Token of each atom; an index beyond the last one for atoms of none.
    starts : int32 [W], optional
        First key of each window, see `window_attention`.
    """

    tokens: Tensor
    atoms: Tensor
    encoder_terms: tuple[Conditions | WindowConditions, ...]
    decoder_terms: tuple[Conditions | WindowConditions, ...]
    encoder_biases: tuple[Tensor, ...] | Tensor
    decoder_biases: tuple[Tensor, ...] | Tensor
    token_biases: tuple[Tensor, ...] | Tensor
    token_mask: Tensor | None
    atom_mask: Tensor | None
    pooling: Pooling
    place: Tensor
    starts: Tensor | None = None


def prepare(operators: PairOperators, weights: ScoreWeights, given: TrunkResults) -> Prepared:
    """Compute what all steps have in common, in the dtype of the tokens and atoms given."""
    rows = given.atoms.dtype

    def terms(stack: DiffusionWeights) -> tuple[Conditions, ...]:
        conditions, updates = given.atom_conditions[:, None], 2 * len(stack.layers)
        return tuple(all_conditions(operators, stack.conditions, conditions, 1, updates))

    return Prepared(
        embedded(operators, weights.conditions, given.tokens.to(rows)),
        given.atoms,
        terms(weights.encoder),
        terms(weights.decoder),
        *(given.encoder_biases, given.decoder_biases, given.token_biases),
        token_mask=None if given.token_mask is None else given.token_mask[:, None],
        atom_mask=None if given.atom_mask is None else given.atom_mask[:, None],
        pooling=Pooling.of(given.token_of_atom, given.tokens.shape[1], rows),
        place=given.token_of_atom[:, None, :, None],
    )


def embedded(operators: PairOperators, weights: ConditionWeights, tokens: Tensor) -> Tensor:
    """Return the conditions [B, N, S] of tokens [B, N, T], without noise levels."""
    rows = layer_norm(tokens, tokens.shape[-1:], *weights.norm)
    found: Tensor = operators.linear_map(rows, weights.embedding, weights.embedding_bias)
    return found.to(tokens.dtype)


def denoise(
    operators: PairOperators, weights: ScoreWeights, run: Prepared, positions: Tensor, times: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the updates [B, R, M, 3] of the positions of R samples, and their tokens [B, R, N, C].

    Parameters
    ----------
    operators : PairOperators
        Operators of a backend.
    weights : ScoreWeights
        Weights.
    run : Prepared
        Intermediate results that all steps have in common.
    positions : [B, R, M, 3]
        Scaled noisy positions.
    times : [B, R] or [B, 1]
        Noise levels, which samples may share.
    """
    maps, samples, rows = weights.maps, positions.shape[1], run.atoms.dtype

    def apply(weight: Tensor, x: Tensor, norm: Norm | None = None) -> Tensor:
        x = x if norm is None else layer_norm(x, x.shape[-1:], *norm)
        return operators.linear_map(x, weight).to(rows)

    s = token_conditions(operators, weights.conditions, run.tokens, times)
    x = run.atoms[:, None] + apply(maps.positions, positions)
    masks = [m if m is None else m.expand(-1, samples, -1) for m in (run.token_mask, run.atom_mask)]
    terms, biases, starts = _shared(run.encoder_terms, samples), run.encoder_biases, run.starts
    x = update_by_terms(operators, weights.encoder.layers, x, terms, biases, masks[1], starts)

    a = run.pooling(relu(apply(maps.pool, x))) + apply(maps.token, s, maps.token_norm)
    a = update_samples(operators, weights.tokens, a, s, run.token_biases, masks[0])

    a = layer_norm(a, a.shape[-1:], *maps.last_norm)
    spread = pad(apply(maps.spread, a), (0, 0, 0, 1))
    x = x + spread.gather(2, run.place.expand(-1, samples, -1, x.shape[-1]))
    terms, biases = _shared(run.decoder_terms, samples), run.decoder_biases
    x = update_by_terms(operators, weights.decoder.layers, x, terms, biases, masks[1], starts)
    return apply(maps.output, x, maps.output_norm), a


def token_conditions(
    operators: PairOperators, weights: ConditionWeights, tokens: Tensor, times: Tensor
) -> Tensor:
    """Return the conditions [B, R, N, S] of tokens [B, N, S] at noise levels [B, R]."""
    apply = operators.linear_map
    times = times.to(weights.frequency.dtype)[..., None]
    waves = torch.cos(2 * pi * (times * weights.frequency + weights.phase)).to(tokens.dtype)
    waves = layer_norm(waves, waves.shape[-1:], *weights.time_norm)
    s = apply(waves, weights.time).to(tokens.dtype)[:, :, None] + tokens[:, None]
    for norm, gate, up, down in weights.transitions:
        y = layer_norm(s, s.shape[-1:], *norm)
        s = apply(silu(apply(y, gate)) * apply(y, up), down).to(s.dtype) + s
    return s


def _shared(
    terms: Sequence[Conditions | WindowConditions], samples: int
) -> list[Conditions | WindowConditions]:
    """Expand terms to samples."""

    def expand(each: tuple[Any, ...]) -> list[Any]:
        return [x.expand(-1, samples, -1, -1) if isinstance(x, Tensor) else x for x in each]

    return [type(each)(*expand(each)) for each in terms]
