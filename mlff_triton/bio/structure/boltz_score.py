"""Adapter for the score network of Boltz-2, which its sampler calls at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlff_triton.bio.encoders.torch_modules import is_unmodified
from mlff_triton.bio.fast_forward import Options, Reading
from mlff_triton.bio.structure.autocast import AutocastForward
from mlff_triton.bio.structure.boltz import KNOWN, SOURCES, transition
from mlff_triton.bio.structure.boltz_diffusion import diffusion_layers, is_transformer
from mlff_triton.bio.structure.boltz_windows import (
    check_sides,
    first_problem,
    is_atom_transformer,
    window_problems,
)
from mlff_triton.bio.structure.diffusion import DiffusionWeights, prepared_maps
from mlff_triton.bio.structure.operators import Operators
from mlff_triton.bio.structure.recognition import exact_weight, has_structure, weight
from mlff_triton.bio.structure.remembered import Remembered
from mlff_triton.bio.structure.score_network import (
    AtomMaps,
    ConditionWeights,
    Prepared,
    ScoreWeights,
    TrunkResults,
    denoise,
    prepare,
)
from mlff_triton.bio.weights import exact, exact_norm, wide_dtype
from mlff_triton.errors import InputError

PARTS = {
    "single_conditioner": "SingleConditioning",
    "atom_attention_encoder": "AtomAttentionEncoder",
    "s_to_a_linear": "Sequential",
    "token_transformer": "DiffusionTransformer",
    "a_norm": "LayerNorm",
    "atom_attention_decoder": "AtomAttentionDecoder",
}
CONDITIONER = [
    *("norm_single", "single_embed", "fourier_embed"),
    *("norm_fourier", "fourier_to_single", "transitions"),
]
ENCODER = ["r_to_q_trans", "atom_encoder", "atom_to_token_trans"]
DECODER = ["a_to_q_trans", "atom_decoder", "atom_feat_to_atom_pos_update"]
CONDITIONS = ("q", "c", "atom_enc_bias", "atom_dec_bias", "token_trans_bias")
FEATURES = ("token_pad_mask", "atom_pad_mask", "atom_to_token")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Given(NamedTuple):
    """Tensors that are the same in all steps of a run, and the function that finds keys."""

    s_inputs: Tensor
    s_trunk: Tensor
    q: Tensor
    c: Tensor
    atom_enc_bias: Tensor
    atom_dec_bias: Tensor
    token_trans_bias: Tensor
    token_pad_mask: Tensor
    atom_pad_mask: Tensor
    atom_to_token: Tensor
    to_keys: Callable[[Tensor], Tensor]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors."""
        return self[:-1]


class Run:
    """Steps of one run of the sampler, in CUDA graphs if wanted."""

    def __init__(
        self,
        reading: Reading[ScoreWeights],
        operators: Operators,
        weights: ScoreWeights,
        fixed: Prepared,
        *,
        captures: bool,
    ) -> None:
        self.reading = reading
        self._operators, self._weights, self._fixed = operators, weights, fixed
        self._graphs = None
        if captures:
            from mlff_triton.bio.graph_cache import GraphCache

            self._graphs = GraphCache(self._step)

    def replay(self, positions: Tensor, times: Tensor) -> Tensor | None:
        """Replay the graph of a step, if there is one for the number of samples."""
        if self._graphs is None or not (positions.is_cuda and times.is_cuda):
            return None
        found = self._graphs.replay((positions, times), _are_equal(times))
        return None if found is None else found[0]

    def step(self, positions: Tensor, times: Tensor) -> Tensor:
        """Return the update [B R, M, 3] of positions, for noise levels [B R]."""
        return (self._graphs or self._step)((positions, times), _are_equal(times))[0]

    def _step(self, inputs: Sequence[Tensor | None], are_equal: bool) -> tuple[Tensor]:
        positions, times = inputs
        assert positions is not None
        assert times is not None
        batch = len(self._fixed.tokens)
        times = times.unflatten(0, (batch, -1))
        times = times[:, :1] if are_equal else times
        positions = positions.unflatten(0, (batch, -1))
        return (
            denoise(self._operators, self._weights, self._fixed, positions, times).flatten(0, 1),
        )


class BoltzScoreForward(AutocastForward[ScoreWeights]):
    """Score network of Boltz-2.

    What a run's steps have in common is prepared in the first one, and kept until the tensors that
    it is made from are deleted. On a GPU, all steps from the third on replay one CUDA graph.
    Conditioning that was made in inference mode must not be changed in place during a run.
    """

    supported = "the score network of Boltz-2"

    def __init__(self, module: nn.Module, options: Options, model: nn.Module | None = None) -> None:
        super().__init__(module, options, model)
        self._last: Remembered[Run] = Remembered()

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Return True for a score network of Boltz-2 with its own classes throughout."""
        own: Any = module
        if type(module).__name__ != "DiffusionModule" or not is_unmodified(module, *SOURCES):
            return False
        if {name: type(part).__name__ for name, part in own.named_children()} != PARTS:
            return False
        encoder, decoder = own.atom_attention_encoder, own.atom_attention_decoder
        names = [list(dict(x.named_children())) for x in (own.single_conditioner, encoder, decoder)]
        if names != [CONDITIONER, ENCODER, DECODER]:
            return False
        atoms = encoder.atom_encoder, decoder.atom_decoder
        stacks_fit = all(map(is_atom_transformer, atoms)) and is_transformer(own.token_transformer)
        transitions = own.single_conditioner.transitions
        return stacks_fit and all(has_structure(each, KNOWN) for each in transitions)

    def read(self) -> ScoreWeights:
        """Read the present weights."""
        own = self.module
        encoder, decoder = own.atom_attention_encoder, own.atom_attention_decoder
        atoms = encoder.atom_encoder, decoder.atom_decoder
        for each in atoms:
            check_sides(each)
        stacks = (
            DiffusionWeights.of(diffusion_layers(stack), self.dtype, self.backend)
            for stack in (
                atoms[0].diffusion_transformer,
                own.token_transformer,
                atoms[1].diffusion_transformer,
            )
        )
        weights = ScoreWeights(
            _condition_weights(own.single_conditioner, wide_dtype(self.dtype)),
            _maps(own, self.rows),
            *stacks,
        )
        return prepared_maps(weights, self.dtype, self.backend)

    @property
    def rows(self) -> torch.dtype:
        """Dtype of tokens and atoms, which kernels update in float32."""
        return torch.float32 if self.backend == "triton" else self.dtype

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Refuse inputs of unexpected shapes, dtypes or devices, and unusual masks and windows.

        The values of what all steps have in common are checked once.
        """
        given = _given(arguments)
        if given is None:
            return "its conditioning is not that of Boltz-2"
        if self.parameter.dtype not in (torch.float32, torch.float64):
            return "its parameters are not float32; use the precision option of bio.accelerate"
        positions, times = arguments.get("r_noisy"), arguments.get("times")
        batch, n_atoms = given.atom_pad_mask.shape[:2]
        samples = arguments.get("multiplicity", 1)
        if type(samples) is not int or samples < 1:
            return "the number of samples is unknown"
        shapes = {(batch * samples, n_atoms, 3): positions, (batch * samples,): times}
        for shape, x in shapes.items():
            if not isinstance(x, Tensor) or x.shape != shape or x.dtype != self.parameter.dtype:
                return (
                    "positions or noise levels are not of the parameters' dtype, or of other sizes"
                )
            if x.device != self.parameter.device:
                return "inputs and parameters are on different devices"
        if any(x.device != self.parameter.device for x in given.tensors):
            return "inputs and parameters are on different devices"
        if self._last.get(given.tensors) is not None:
            return None
        return self._shape_refusal(given) or self._value_refusal(given)

    def _shape_refusal(self, given: Given) -> str | None:
        own = self.module
        transformer = own.atom_attention_encoder.atom_encoder
        queries, keys = transformer.attn_window_queries, transformer.attn_window_keys
        batch, atoms = given.atom_pad_mask.shape
        tokens = given.token_pad_mask.shape[-1]
        windows = (batch, atoms // queries, queries, keys)
        shapes = {
            "s_inputs": (batch, tokens),
            "s_trunk": (batch, tokens),
            "q": (batch, atoms),
            "c": (batch, atoms),
            "atom_enc_bias": windows,
            "atom_dec_bias": windows,
            "token_trans_bias": (batch, tokens, tokens),
            "token_pad_mask": (batch, tokens),
            "atom_to_token": (batch, atoms, tokens),
        }
        if not batch * atoms * tokens or atoms % queries:
            return "there are no atoms, or not a whole number of windows"
        for name, shape in shapes.items():
            x = getattr(given, name)
            if x.shape[: len(shape)] != shape:
                return f"{name} does not have the size of its tokens or atoms"
            if name not in FEATURES and x.dtype not in (*FLOATS, self.parameter.dtype):
                return f"{name} is not of a floating dtype"
        return None

    def _value_refusal(self, given: Given) -> str | None:
        transformer = self.module.atom_attention_encoder.atom_encoder
        owned, mask = given.atom_to_token, given.token_pad_mask
        problems = {
            "the mask of tokens has values other than 0 and 1": ((mask != 0) & (mask != 1)).any(),
            "an atom belongs to several tokens": ((owned != 0) & (owned != 1)).any()
            | (owned.sum(-1) > 1).any(),
        }
        with self.without_autocast():
            found = window_problems(transformer, given.to_keys, given.atom_pad_mask)
        return first_problem(problems | found)

    def begin(self, arguments: Mapping[str, Any]) -> Tensor | None:
        """Replay the graph of a step, if there is one for these inputs."""
        given, positions, times = (
            _given(arguments),
            arguments.get("r_noisy"),
            arguments.get("times"),
        )
        if given is None or not isinstance(positions, Tensor) or not isinstance(times, Tensor):
            return None
        run = self._last.get(given.tensors)
        is_current = run is not None and run.reading is self._reading
        return run.replay(positions, times) if run is not None and is_current else None

    def compute(self, arguments: Mapping[str, Any], begun: Tensor | None) -> Tensor:
        """Return the update of positions [B R, M, 3]."""
        if begun is not None:
            return begun
        given, dtypes = _given(arguments), (self.rows, self.dtype)
        assert given is not None
        with self.without_autocast():
            run = self._last.get(given.tensors)
            if run is None or run.reading is not self._reading:
                run = self._begin_run(given, *dtypes)
            return run.step(arguments["r_noisy"], arguments["times"])

    def _begin_run(self, given: Given, rows: torch.dtype, products: torch.dtype) -> Run:
        """Prepare what all steps have in common, with the dtypes of `prepare`."""
        self._last.forget()
        owned, masks = given.atom_to_token, (given.token_pad_mask, given.atom_pad_mask)
        token = torch.where(owned.sum(-1) > 0, owned.argmax(-1), owned.shape[-1])
        present = [None if bool((x != 0).all()) else x.to(rows) for x in masks]
        trunk = TrunkResults(
            torch.cat((given.s_trunk.to(rows), given.s_inputs.to(rows)), -1),
            *(given.q.detach(), given.c.detach()),
            *(given.atom_enc_bias, given.atom_dec_bias, given.token_trans_bias),
            token_mask=present[0],
            atom_mask=present[1],
            token_of_atom=token,
        )
        assert self._reading is not None
        operators = Operators.of(self.backend)
        run = Run(
            self._reading,
            operators,
            self.weights,
            prepare(operators, self.weights, trunk, rows, products),
            captures=self.options.captures(self.backend, self.module),
        )
        self._last.set(given.tensors, run)
        return run

    def refresh(self) -> None:
        """Forget the weights and what was computed from them."""
        super().refresh()
        self._last.forget()


def _given(arguments: Mapping[str, Any]) -> Given | None:
    """Return what all steps have in common; None if something is missing."""
    features, conditions = arguments.get("feats"), arguments.get("diffusion_conditioning")
    if not isinstance(features, Mapping) or not isinstance(conditions, Mapping):
        return None
    parts = [arguments.get("s_inputs"), arguments.get("s_trunk")]
    parts += [conditions.get(name) for name in CONDITIONS]
    parts += [features.get(name) for name in FEATURES]
    to_keys = conditions.get("to_keys")
    if not callable(to_keys) or not all(isinstance(x, Tensor) for x in parts):
        return None
    return Given._make([*parts, to_keys])


def _are_equal(times: Tensor) -> bool:
    """Return True if all samples have one noise level. The host waits if there are several."""
    return len(times) == 1 or bool((times == times[0]).all())


def _condition_weights(module: Any, wide: torch.dtype) -> ConditionWeights:
    waves = module.fourier_embed.proj
    return ConditionWeights(
        exact_norm(module.norm_single),
        exact_weight(module.single_embed),
        exact(module.single_embed.bias),
        exact_weight(waves)[:, 0].to(wide),
        exact(waves.bias).to(wide),
        exact_norm(module.norm_fourier),
        weight(module.fourier_to_single),
        [transition(each) for each in module.transitions],
    )


def _maps(own: Any, rows: torch.dtype) -> AtomMaps:
    encoder, decoder = own.atom_attention_encoder, own.atom_attention_decoder
    update = decoder.atom_feat_to_atom_pos_update
    norm, output = update if isinstance(update, nn.Sequential) else (None, update)
    if type(encoder.atom_to_token_trans[1]) is not nn.ReLU:
        raise InputError("atoms are mapped to tokens with another activation than ReLU")
    return AtomMaps(
        weight(encoder.r_to_q_trans).to(rows),
        weight(encoder.atom_to_token_trans[0]),
        exact_norm(own.s_to_a_linear[0]),
        weight(own.s_to_a_linear[1]),
        exact_norm(own.a_norm),
        weight(decoder.a_to_q_trans),
        None if norm is None else exact_norm(norm),
        weight(output).to(rows),
    )
