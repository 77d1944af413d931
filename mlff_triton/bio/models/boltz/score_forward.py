"""Base class of adapters for networks that remove noise from atoms at every step of a sampler."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlff_triton.bio.core.first_launch import before_first_launch
from mlff_triton.bio.core.graph_cache import Inputs
from mlff_triton.bio.core.operators import pair_operators
from mlff_triton.bio.models.boltz.windows import first_problem, window_problems
from mlff_triton.bio.models.structure.mask_check import has_other_values
from mlff_triton.bio.models.structure.sampling import SamplingForward, Step
from mlff_triton.bio.models.structure.score_network import (
    Prepared,
    ScoreWeights,
    TrunkResults,
    denoise,
    prepare,
)

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
Results = tuple[Tensor, Tensor]
"""Updates of positions [B R, M, 3], and tokens [B R, N, C]."""


class Biases(NamedTuple):
    """Biases of all layers: of atoms [L, B, W, H, Q, T], and of tokens [L, B, H, N, N]."""

    encoder: Tensor
    decoder: Tensor
    tokens: Tensor


class Given(NamedTuple):
    """Tensors that are the same in all steps of a run.

    Attributes
    ----------
    tokens : tuple of [B, N, S]
        Tokens, to be joined.
    atoms, conditions : [B, M, A]
        Atoms without positions, and their conditions.
    biases : tuple of Tensor
        Biases, in the layout of the package.
    token_mask, atom_mask : [B, N], [B, M]
        1 for tokens and atoms, 0 for padding.
    atom_to_token : [B, M, N]
        1 for the token of an atom, 0 for others.
    to_keys : callable
        Takes [B, M, C], and returns the keys [B, W, T, C] of all windows.
    """

    tokens: tuple[Tensor, Tensor]
    atoms: Tensor
    conditions: Tensor
    biases: tuple[Tensor, ...]
    token_mask: Tensor
    atom_mask: Tensor
    atom_to_token: Tensor
    to_keys: Callable[[Tensor], Tensor]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors."""
        masks = self.token_mask, self.atom_mask, self.atom_to_token
        return (*self.tokens, self.atoms, self.conditions, *self.biases, *masks)


@dataclass(frozen=True)
class NetworkStep:
    """Step of a network, computed from the results of `prepare`."""

    backend: str | None
    weights: ScoreWeights

    def __call__(self, fixed: Prepared, inputs: Inputs, are_equal: bool) -> Results:
        """Compute a step from positions [B R, M, 3] and noise levels [B R]."""
        positions, times = inputs
        assert positions is not None
        assert times is not None
        batch = len(fixed.tokens)
        times = times.unflatten(0, (batch, -1))
        times = times[:, :1] if are_equal else times
        positions = positions.unflatten(0, (batch, -1))
        found = denoise(pair_operators(self.backend), self.weights, fixed, positions, times)
        update, tokens = (x.flatten(0, 1).to(positions.dtype) for x in found)
        return update, tokens


class ScoreForward(SamplingForward[ScoreWeights]):
    """Network that is given the data shared by the steps of a run."""

    @abstractmethod
    def given(self, arguments: Mapping[str, Any]) -> Given | None:
        """Return what all steps have in common; None if something is missing."""

    @abstractmethod
    def bias_shapes(self, given: Given, samples: int) -> list[tuple[int, ...]]:
        """Return the sizes that the biases must have along their first axes."""

    @abstractmethod
    def biases(self, given: Given, products: torch.dtype) -> Biases:
        """Return all biases in their dtype, or in the dtype of products if it is smaller."""

    @property
    @abstractmethod
    def atom_transformer(self) -> Any:
        """Transformer of atoms whose windows represent those of all transformers of atoms."""

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse inputs of unexpected shapes, dtypes or devices, and unusual masks and windows.

        The values of the data shared by all steps are checked once.
        """
        given = self.given(arguments)
        if given is None:
            return f"its conditioning is not that of {self.supported}"
        if self.parameter.dtype not in (torch.float32, torch.float64):
            return "its parameters are not float32; use the precision option of bio.accelerate"
        positions, times = arguments.get("r_noisy"), arguments.get("times")
        batch, n_atoms = given.atom_mask.shape[:2]
        samples = arguments.get("multiplicity", 1)
        if type(samples) is not int or samples < 1:
            return "the number of samples is unknown"
        shapes = {(batch * samples, n_atoms, 3): positions, (batch * samples,): times}
        for shape, x in shapes.items():
            if not isinstance(x, Tensor) or x.shape != shape or x.dtype != self.parameter.dtype:
                return (
                    "positions or noise levels have another dtype than parameters, or other sizes"
                )
            if x.device != self.parameter.device:
                return "inputs and parameters are on different devices"
        if any(x.device != self.parameter.device for x in given.tensors):
            return "inputs and parameters are on different devices"
        if self._last.get(given.tensors) is not None:
            return None
        return self._shape_refusal(given, samples) or self._value_refusal(given)

    def _shape_refusal(self, given: Given, samples: int) -> str | None:
        batch, atoms = given.atom_mask.shape
        tokens = given.token_mask.shape[-1]
        if not batch * atoms * tokens or atoms % self.atom_transformer.attn_window_queries:
            return "there are no atoms, or not a whole number of windows"
        if given.atom_to_token.shape != (batch, atoms, tokens):
            return "the tokens of atoms do not have the size of tokens and atoms"
        shapes: list[tuple[int, ...]] = [
            *[(batch, tokens)] * 2,
            *[(batch, atoms)] * 2,
            *self.bias_shapes(given, samples),
        ]
        read = (*given.tokens, given.atoms, given.conditions, *given.biases)
        for shape, x in zip(shapes, read, strict=True):
            if x.shape[: len(shape)] != shape:
                return f"conditioning of size {tuple(x.shape)} does not fit to tokens or atoms"
            if x.dtype not in (*FLOATS, self.parameter.dtype):
                return "its conditioning is not of a floating dtype"
        return None

    def _value_refusal(self, given: Given) -> str | None:
        owned, mask = given.atom_to_token, given.token_mask
        problems = {
            "the mask of tokens has values other than 0 and 1": has_other_values(mask),
            "an atom belongs to several tokens": has_other_values(owned)
            | (owned.sum(-1) > 1).any(),
        }
        with self.without_autocast():
            found = window_problems(self.atom_transformer, given.to_keys, given.atom_mask)
        return first_problem(problems | found)

    def begin(self, arguments: Mapping[str, Any]) -> Results | None:
        """Replay the graph of a step, if there is one for these inputs."""
        given = self.given(arguments)
        positions, times = arguments.get("r_noisy"), arguments.get("times")
        if given is None or not isinstance(positions, Tensor) or not isinstance(times, Tensor):
            return None
        run = self.run_with(given.tensors)
        if run is None or not run.captures:
            return None
        found = run.replay((positions, times), _are_equal(times))
        return None if found is None else (found[0], found[1])

    def compute(self, arguments: Mapping[str, Any], begun: Results | None) -> Any:
        """Return the network's result: the update of positions [B R, M, 3]."""
        return self.results(arguments, begun)[0]

    def results(self, arguments: Mapping[str, Any], begun: Results | None) -> Results:
        """Compute a step, or return one that was begun."""
        if begun is not None:
            return begun
        given, inputs = self.given(arguments), (arguments["r_noisy"], arguments["times"])
        assert given is not None
        prepare = partial(self._prepare, given, self.rows, self.dtype)
        option = _are_equal(inputs[1])
        with self.without_autocast():
            run = self.run_with(given.tensors) or self.begin_run(given.tensors, prepare)
            tokens = run.fixed.tokens
            before_first_launch(
                self.backend,
                (NetworkStep, inputs[0].shape, tokens.shape, tokens.dtype, option),
                tokens,
                lambda: self.step(run.fixed, inputs, option),
            )
            update, tokens = run(inputs, option)
            return update, tokens

    @property
    def step(self) -> Step:
        """Function that computes a step with the present weights."""
        return NetworkStep(self.backend, self.weights)

    def _prepare(self, given: Given, rows: torch.dtype, products: torch.dtype) -> Prepared:
        """Prepare what all steps have in common, with the dtypes of `prepare`."""
        owned, masks = given.atom_to_token, (given.token_mask, given.atom_mask)
        present = [None if bool((x != 0).all()) else x.to(rows) for x in masks]
        biases = self.biases(given, products)
        trunk = TrunkResults(
            torch.cat([x.to(rows) for x in given.tokens], -1),
            *(given.atoms.to(rows).detach(), given.conditions.to(rows).detach()),
            *(biases.encoder, biases.decoder, biases.tokens),
            token_mask=present[0],
            atom_mask=present[1],
            token_of_atom=torch.where(owned.sum(-1) > 0, owned.argmax(-1), owned.shape[-1]),
        )
        return prepare(pair_operators(self.backend), self.weights, trunk)


def _are_equal(times: Tensor) -> bool:
    """Return True if all samples have one noise level. The host waits if there are several."""
    return len(times) == 1 or bool((times == times[0]).all())
