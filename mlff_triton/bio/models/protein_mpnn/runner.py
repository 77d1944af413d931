"""Runner of ProteinMPNN: scores in CUDA graphs, and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.core.graph_cache import GraphCache
from mlff_triton.bio.models.protein_mpnn.network import Backbones, Encoded, encode, score
from mlff_triton.bio.models.protein_mpnn.sampling import (
    Draws,
    Plan,
    choices_of,
    decoder_weights,
    graph_of,
)
from mlff_triton.bio.models.protein_mpnn.weights import MPNNWeights
from mlff_triton.errors import InputError
from mlff_triton.kernels.numerics.split import split_weight
from mlff_triton.kernels.residues.protocol import ResidueOperators


class Scoring(NamedTuple):
    """Sequences to score on backbones: B proteins of L residues or fewer.

    Attributes
    ----------
    atoms, mask, numbers, chains : Tensor
        Backbones: see `Backbones`.
    sequence : int64 [B, L]
        Amino acids.
    order : int64 [B, L] or None
        Order of decoding. If it is None, ``designed`` and ``noise`` determine it.
    designed, noise : [B, L] or None
        1 for residues that are decoded last, and random numbers.
    """

    atoms: Tensor
    mask: Tensor
    numbers: Tensor
    chains: Tensor
    sequence: Tensor
    order: Tensor | None
    designed: Tensor | None
    noise: Tensor | None


class Runner:
    """Runs the model on a backend, in the dtype of its weights.

    Parameters
    ----------
    weights : MPNNWeights
        Weights.
    operators : ResidueOperators
        Operators of the backend.
    n_neighbors : int
        Largest number of neighbors of a residue.
    splits : bool
        True if the operators multiply by halves of weights.
    graphs : bool
        True to score in CUDA graphs when shapes occur again.
    """

    def __init__(
        self,
        weights: MPNNWeights,
        operators: ResidueOperators,
        n_neighbors: int,
        *,
        splits: bool,
        graphs: bool,
    ) -> None:
        self.weights, self.operators, self.n_neighbors = weights, operators, n_neighbors
        self._decoder = decoder_weights(weights)
        if splits:
            self.weights = weights.split()
            self._decoder = self._decoder._replace(
                second=split_weight(self._decoder.second, "fixed_halves")
            )
        self._exact = weights
        self._graphs = GraphCache(self._score) if graphs else None

    def begin(self, task: Scoring) -> Tensor | None:
        """Replay the graph for a task's shapes, if there is one; return log-probabilities."""
        outputs = None if self._graphs is None else self._graphs.replay(task)
        return None if outputs is None else outputs[0]

    def score(self, task: Scoring) -> Tensor:
        """Compute log-probabilities [B, L, V] of a sequence."""
        return (self._graphs or self._score)(task, None)[0]

    def _score(self, inputs: Sequence[Tensor | None], option: None) -> tuple[Tensor]:
        del option
        task = Scoring._make(inputs)
        order = task.order
        if order is None:
            assert task.designed is not None
            assert task.noise is not None
            order = decoding_order(task.designed * task.mask, task.noise)
        encoded = self.encode(Backbones(task.atoms, task.mask, task.numbers, task.chains))
        return (score(self.operators, self.weights, encoded, task.sequence, order),)

    def encode(self, given: Backbones) -> Encoded:
        """Encode backbones."""
        return encode(self.operators, self.weights, given, self.n_neighbors)

    def sample(
        self, given: Backbones, arguments: Mapping[str, Any], designed: Tensor, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        """Sample sequences [B, L], and return them with their probabilities [B, L, V].

        Raises
        ------
        InputError
            If the options leave no amino acid to a residue.
        """
        encoded, shape = self.encode(given), designed.shape
        draws = Draws.of(arguments["S_true"], given.mask, designed, plan)
        choices = choices_of(arguments, draws, plan)
        graph = graph_of(self._exact, encoded, plan.order)
        computed = draws.computed.to(graph.mask.dtype)
        graph = graph._replace(mask=(graph.mask.view(shape) * computed).flatten())
        sequence, p = self.operators.decode(graph, self._decoder, plan.schedule(), choices)
        p = p.float().unflatten(0, shape) * draws.drawn[..., None]
        if not bool(p.isfinite().all()):
            raise InputError("a residue may become no amino acid: omit_AA_mask rules out all")
        return sequence.view(shape), p


def decoding_order(designed: Tensor, noise: Tensor) -> Tensor:
    """Return the order of decoding [B, L]: fixed residues first, others at random."""
    return torch.argsort((designed + 0.0001) * noise.abs())
