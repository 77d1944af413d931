"""Base class of adapters for score networks that compute their biases from pairs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from mlff_triton.bio.core.fast_forward import Options, Reading
from mlff_triton.bio.core.first_launch import before_first_launch
from mlff_triton.bio.core.graph_cache import Inputs, Outputs
from mlff_triton.bio.core.operators import pair_operators
from mlff_triton.bio.core.recognition import Children, has_children, has_structure, is_unmodified
from mlff_triton.bio.models.structure.biases import BiasMaps
from mlff_triton.bio.models.structure.diffusion import DiffusionLayer, DiffusionWeights
from mlff_triton.bio.models.structure.mask_check import MaskCheck
from mlff_triton.bio.models.structure.remembered import tensors_in
from mlff_triton.bio.models.structure.sampling import SamplingForward, Step
from mlff_triton.bio.models.structure.score_network import (
    AtomMaps,
    ConditionWeights,
    Pooling,
    Prepared,
    ScoreWeights,
    denoise,
    embedded,
)
from mlff_triton.bio.models.structure.updates import prepared
from mlff_triton.bio.models.structure.window_conditions import window_conditions
from mlff_triton.errors import InputError
from mlff_triton.kernels.common.hardware import allows_tf32
from mlff_triton.kernels.pairs.protocol import PairOperators

BLOCK = "DiffusionTransformerBlock"
"""Name of the class of a block of transformers."""
WINDOW_SIDES = 16, 32, 64, 128
"""Numbers of queries and of keys per window that kernels support."""
MAX_WINDOW_HEAD_CHANNELS = 64


class Transformer(NamedTuple):
    """Layers of a transformer, and maps of pairs to their biases, in float64."""

    layers: list[DiffusionLayer]
    biases: BiasMaps


class Collected(NamedTuple):
    """Weights of a score network, in float64 where backends convert them.

    Attributes
    ----------
    conditions : ConditionWeights
        Weights that embed tokens and noise levels.
    maps : AtomMaps
        Maps from and to atoms.
    encoder, tokens, decoder : Transformer
        Transformers of atoms, tokens and again atoms.
    """

    conditions: ConditionWeights
    maps: AtomMaps
    encoder: Transformer
    tokens: Transformer
    decoder: Transformer


class PairScoreWeights(NamedTuple):
    """Weights of a score network for a backend.

    Attributes
    ----------
    network : ScoreWeights
        Weights of its steps.
    biases : list of BiasMaps
        Maps of pairs to the biases of its three transformers.
    encoder, decoder : list of DiffusionLayer
        Layers of atoms in float64, for terms that steps share.
    tf32 : bool
        True if PyTorch's products may be in TF32.
    """

    network: ScoreWeights
    biases: list[BiasMaps]
    encoder: list[DiffusionLayer]
    decoder: list[DiffusionLayer]
    tf32: bool


class Noisy(NamedTuple):
    """Arguments that change from step to step.

    Attributes
    ----------
    x : [R, A, 3]
        Noisy positions of R samples.
    levels : [R] or [1]
        Noise levels.
    """

    x: Tensor
    levels: Tensor


class Given(NamedTuple):
    """Results of modules that run once, as they are.

    Attributes
    ----------
    tokens : [1, N, T]
        Tokens of the trunk and of the inputs, joined.
    atoms : [1, A, C]
        Conditions of atoms.
    pairs : [1, N, N, P]
        Conditions of pairs of tokens.
    atom_pairs : [W, Q, K, P]
        Conditions of pairs of atoms in windows.
    token_of_atom : int64 [A]
        Token of each atom.
    eps : float
        Added to numbers of atoms, which means over atoms divide by.
    atom_mask, token_mask : [A], [N], optional
        1 for atoms and tokens, 0 for padding.
    starts : int32 [W], optional
        First key of each window; by default such that keys have the center of their queries.
    """

    tokens: Tensor
    atoms: Tensor
    pairs: Tensor
    atom_pairs: Tensor
    token_of_atom: Tensor
    eps: float = 0.0
    atom_mask: Tensor | None = None
    token_mask: Tensor | None = None
    starts: Tensor | None = None


class RunTerms(NamedTuple):
    """Tensors that all steps of a run have in common.

    Attributes
    ----------
    network : Prepared
        Those of the network.
    atom_mask : [A], optional
        1 for atoms, 0 for padding.
    """

    network: Prepared
    atom_mask: Tensor | None


@dataclass(frozen=True)
class DenoisingStep:
    """Step that returns positions with less noise, a `Step` of `RunTerms`."""

    backend: str | None
    weights: ScoreWeights
    sigma: float  # standard deviation of data

    def __call__(self, fixed: RunTerms, inputs: Inputs, _: Any) -> Outputs:
        """Compute a step from positions [R, A, 3] and noise levels [R] or [1]."""
        x, levels = inputs
        assert x is not None
        assert levels is not None
        sigma, (network, mask) = self.sigma, fixed
        kept = 1 if mask is None else mask[:, None].to(x.dtype)
        x, level = kept * x, levels[:, None, None]
        variance = sigma**2 + level**2
        missing = network.atoms.shape[1] - x.shape[1]
        scaled = pad(x / variance.sqrt(), (0, 0, 0, missing))[None]
        times = torch.log(levels / sigma)[None] / 4
        update, _ = denoise(pair_operators(self.backend), self.weights, network, scaled, times)
        update = update[0, :, : x.shape[1]].to(x.dtype)
        x = sigma**2 / variance * x + sigma * level / variance.sqrt() * update
        return (kept * x,)


class PairScoreForward(SamplingForward[PairScoreWeights]):
    """Score network whose steps share all terms that do not depend on positions or noise.

    The original modules compute part of them.
    """

    names: ClassVar[tuple[str, str]]
    """Names of the arguments that change from step to step: positions and noise levels."""
    sources: ClassVar[tuple[str, ...]]
    """Python modules and packages that the classes come from, as for `is_unmodified`."""
    parts: ClassVar[Children]
    """Submodules of the network."""
    known: ClassVar[Mapping[str, Children]]
    """Submodules of classes of the package, among them those of a block of its transformers."""

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a score network of the package with its own classes throughout."""
        if type(module).__name__ != "DiffusionModule" or not is_unmodified(module, *cls.sources):
            return False
        blocks = [part for part in module.modules() if type(part).__name__ == BLOCK]
        is_known = has_children(module, cls.parts) and bool(blocks)
        return is_known and all(has_structure(block, cls.known) for block in blocks)

    def __init__(self, module: nn.Module, options: Options, model: nn.Module | None = None) -> None:
        super().__init__(module, options, model)
        self._check = MaskCheck()

    @abstractmethod
    def collect(self) -> Collected:
        """Read the weights."""

    @abstractmethod
    def window(self) -> tuple[int, int]:
        """Return the numbers of queries and of keys per window of atoms."""

    @abstractmethod
    def noisy(self, arguments: Mapping[str, Any]) -> Noisy | str:
        """Return the arguments that change, or the reason why they are refused."""

    @abstractmethod
    def prepare(self, arguments: Mapping[str, Any]) -> Given:
        """Run the modules that run once."""

    def masks(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the masks among the arguments."""
        del arguments
        return []

    def read(self) -> PairScoreWeights:
        """Read the present weights.

        Only tokens multiply by halves, unless PyTorch may use TF32, which is faster.
        """
        queries, keys = self.window()
        if self.module.sigma_data != self.module.diffusion_conditioning.sigma_data:
            raise InputError("its conditioning has another standard deviation of data")
        if queries not in WINDOW_SIDES or keys not in WINDOW_SIDES or queries > keys:
            raise InputError(f"windows of atoms have {queries} queries and {keys} keys")
        found, dtype, backend = self.collect(), self.dtype, self.backend
        for layer in (*found.encoder.layers, *found.decoder.layers):
            assert isinstance(layer.attention.out, Tensor)
            width = layer.attention.out.shape[1]
            if width > MAX_WINDOW_HEAD_CHANNELS * layer.heads:
                raise InputError(f"{width} channels of atoms in {layer.heads} heads are too many")
        transformers, tf32 = (found.encoder, found.tokens, found.decoder), allows_tf32()
        network = ScoreWeights(
            prepared(found.conditions, dtype, backend),
            prepared(found.maps, dtype, backend),
            *(
                DiffusionWeights.of(
                    each.layers, dtype, backend, split=each is found.tokens and not tf32
                )
                for each in transformers
            ),
        )
        biases = [prepared(each.biases, dtype, backend) for each in transformers]
        return PairScoreWeights(network, biases, found.encoder.layers, found.decoder.layers, tf32)

    def _is_current(self, reading: Reading[PairScoreWeights]) -> bool:
        """Return True if neither weights nor dtype nor PyTorch's use of TF32 have changed."""
        same = reading.weights is None or reading.weights.tf32 == allows_tf32()
        return same and super()._is_current(reading)

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse inputs of unexpected shapes, dtypes or devices, and masks of other values."""
        reason = self._refusal(arguments)
        if reason is not None:
            self._last.forget()  # the original forward may overwrite what a run was prepared from
        return reason

    def _refusal(self, arguments: Mapping[str, Any]) -> str | None:
        if self.parameter.dtype not in (torch.float32, torch.float64):
            return "its parameters are not float32; use the precision option of bio.accelerate"
        if not all(isinstance(arguments.get(name), Tensor) for name in self.names):
            return "positions and noise levels are not tensors"
        found = self.noisy(arguments)
        if isinstance(found, str):
            return found
        x, levels = found
        if x.dim() != 3 or not x.numel() or levels.shape not in ((1,), (len(x),)):
            return "positions or noise levels are not those of samples of one complex"
        if not (x.is_floating_point() and levels.is_floating_point()):
            return "positions or noise levels are not of a floating dtype"
        device = self.parameter.device
        if any(part.device != device for part in tensors_in(arguments)):
            return "inputs and parameters are on different devices"
        if self._last.get(self._fixed(arguments)) is not None:
            return None
        reasons = map(self._check.refusal, self.masks(arguments))
        return next((reason for reason in reasons if reason is not None), None)

    def begin(self, arguments: Mapping[str, Any]) -> Outputs | None:
        """Replay the graph of a step, if there is one for these inputs."""
        run = self.run_with(self._fixed(arguments))
        if run is None or not all(isinstance(arguments.get(name), Tensor) for name in self.names):
            return None
        found = self.noisy(arguments)
        return None if isinstance(found, str) else run.replay(self._inputs(found))

    def compute(self, arguments: Mapping[str, Any], begun: Outputs | None) -> Tensor:
        """Return positions with less noise."""
        if begun is None:
            tensors, inputs = self._fixed(arguments), self._inputs(self.noisy(arguments))
            prepare = partial(self._terms, arguments, inputs)
            run = self.run_with(tensors) or self.begin_run(tensors, prepare)
            with self.without_autocast():
                begun = run(inputs)
        given: Tensor = arguments[self.names[0]]
        return begun[0].view(given.shape).to(given.dtype)

    def _inputs(self, noisy: Noisy | str) -> list[Tensor]:
        assert isinstance(noisy, Noisy)
        return [part.to(self.parameter.dtype) for part in noisy]

    def _fixed(self, arguments: Mapping[str, Any]) -> list[Tensor]:
        """Return the tensors among the arguments that do not change from step to step."""
        return list(tensors_in({k: v for k, v in arguments.items() if k not in self.names}))

    @property
    def step(self) -> Step:
        """Function that computes a step with the present weights."""
        return DenoisingStep(self.backend, self.weights.network, float(self.module.sigma_data))

    def _terms(self, arguments: Mapping[str, Any], inputs: Sequence[Tensor]) -> RunTerms:
        """Return what all steps have in common, and compile the kernels of a step."""
        given = self.prepare(arguments)
        sizes = [x.shape for x in (*inputs, given.tokens, given.atom_pairs)]
        operators, dtypes = pair_operators(self.backend), (self.rows, self.dtype)

        def terms() -> RunTerms:
            return RunTerms(self._fixed_terms(operators, given, *dtypes), given.atom_mask)

        with self.without_autocast():
            before_first_launch(
                self.backend,
                (type(self), self.weights.tf32, *dtypes, *sizes),
                given.tokens,
                lambda: self.step(terms(), inputs, None),
            )
            return terms()

    def _fixed_terms(
        self, operators: PairOperators, given: Given, rows: torch.dtype, dtype: torch.dtype
    ) -> Prepared:
        """Compute what does not change from the results of modules that run once."""
        network, biases, *_ = self.weights
        count, total = given.atoms.shape[1], given.atom_pairs.shape[:2].numel()
        atoms = pad(given.atoms.to(rows), (0, 0, 0, total - count))
        n_tokens, token = given.tokens.shape[1], given.token_of_atom.long()
        if given.atom_mask is not None:
            token = token.where(given.atom_mask != 0, n_tokens)
        token = pad(token, (0, total - count), value=n_tokens)[None]
        pairs = given.atom_pairs.to(rows), given.pairs.to(rows), given.atom_pairs.to(rows)
        encoder, tokens, decoder = (
            each.biases(operators, z) for each, z in zip(biases, pairs, strict=True)
        )
        return Prepared(
            embedded(operators, network.conditions, given.tokens.to(rows)),
            atoms,
            window_conditions(self.weights.encoder, atoms[:, None], dtype),
            window_conditions(self.weights.decoder, atoms[:, None], dtype),
            tuple(bias[None] for bias in encoder),
            tuple(bias[None] for bias in decoder),
            tokens,
            _unless_whole(None if given.token_mask is None else given.token_mask[None], rows),
            _unless_whole(token < n_tokens, rows),
            Pooling.of(token, n_tokens, rows, given.eps),
            token[:, None, :, None],
            given.starts,
        )


def _unless_whole(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask [B, 1, N] of one [B, N], or None if it keeps everything."""
    return None if mask is None or bool((mask != 0).all()) else mask.to(dtype)[:, None]
