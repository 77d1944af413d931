"""Protein language models: forward passes of accelerated models against those as shipped.

Weights are random, in the sizes of the published models. The error is one minus the smallest cosine
similarity between a token's last hidden state and that in float32. Models with language heads are
compared by their hidden states and by their most likely tokens too.
"""

from __future__ import annotations

import sys
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.engine.peers import eager, graphed
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from mlff_triton._common.timing import Timing, measure, reset_peak

OUR_TOLERANCE, PEER_TOLERANCE = 1e-5, 1e-4
MARGIN = 1e-3  # of the best logit over the second best, from which the best token must agree

Inputs = dict[str, Tensor]
Step = Callable[[], Any]


class Architecture(NamedTuple):
    """Model of transformers: the prefix of its class names, and its size."""

    family: str
    layers: int
    width: int
    heads: int

    def build(self, attention: str, device: torch.device, *, head: bool) -> nn.Module:
        """Build the model in float32, with or without language head, with reproducible weights."""
        import transformers

        config = getattr(transformers, f"{self.family}Config")(
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            num_attention_heads=self.heads,
            intermediate_size=4 * self.width,
            attn_implementation=attention,
            **FAMILIES[self.family],
        )
        kind = getattr(transformers, self.family + ("ForMaskedLM" if head else "Model"))
        with torch.device(device):
            model = kind(config) if head else kind(config, add_pooling_layer=False)
        return randomize(model.eval())


def randomize(model: nn.Module) -> nn.Module:
    """Set random weights with which every layer and its attention distinguish tokens."""
    for name, parameter in model.named_parameters():
        generator = torch.Generator(parameter.device).manual_seed(zlib.crc32(name.encode()))
        if parameter.dim() > 1:
            mean, std = 0.0, parameter.shape[-1] ** -0.5
        else:
            mean, std = float(name.endswith("weight")), 0.1  # normalizations, biases
        parameter.data.normal_(mean, std, generator=generator)
    return model


FAMILIES: dict[str, dict[str, Any]] = {
    "Esm": {
        "vocab_size": 33,
        "pad_token_id": 1,
        "mask_token_id": 32,
        "token_dropout": True,
        "position_embedding_type": "rotary",
        "max_position_embeddings": 1026,
    },
    "Bert": {"vocab_size": 30, "pad_token_id": 0, "max_position_embeddings": 40000},
}
ARCHITECTURES = {
    "esm2-8m": Architecture("Esm", 6, 320, 20),
    "esm2-650m": Architecture("Esm", 33, 1280, 20),
    "esm2-3b": Architecture("Esm", 36, 2560, 40),
    "protbert": Architecture("Bert", 30, 1024, 16),
    "bert-small": Architecture("Bert", 4, 512, 8),
}


class ProteinLengths(NamedTuple):
    """Log-normal distribution of protein lengths, in residues, between two limits."""

    name: str = "padded"
    median: int = 300
    spread: float = 0.6
    shortest: int = 50
    longest: int = 1000

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw random lengths, int64 [count]."""
        lengths = rng.lognormal(np.log(self.median), self.spread, count)
        return lengths.clip(self.shortest, self.longest).astype(int)


PROTEINS = ProteinLengths()
# The mean is that of eukaryotes, 472 residues (Tiessen et al., BMC Research Notes 5, 85, 2012), and
# the limits are those of ESM-2, for which longer proteins are cut.
PROTEOME = ProteinLengths("proteome", 360, 0.735, 30, 1022)


@dataclass(frozen=True)
class BioCase:
    """Model and its inputs; without a length, padded proteins of random lengths."""

    model: str
    batch: int
    length: int | None = None
    head: bool = False
    proteins: ProteinLengths = PROTEINS

    @property
    def name(self) -> str:
        """Name in the results."""
        shape = f"{self.proteins.name}-{self.batch}"
        if self.length is not None:
            shape = f"{self.batch}x{self.length}"
        return f"{self.model}-{shape}" + ("-head" if self.head else "")

    def inputs(self, device: torch.device | str) -> Inputs:
        """Make tokens and their mask, [B, L]."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        lengths = np.full(self.batch, self.length)
        if self.length is None:
            lengths = self.proteins.draw(rng, self.batch)
        mask = np.arange(lengths.max()) < lengths[:, None]
        padding = FAMILIES[ARCHITECTURES[self.model].family]["pad_token_id"]
        ids = np.where(mask, rng.integers(4, 24, mask.shape), padding)
        arrays = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


SHAPES = ((1, 128), (1, 512), (1, 1022), (8, 512), (32, 256))
FIRST_CASES = (  # the most important ones, in case time runs out
    *(BioCase("esm2-8m", *shape) for shape in SHAPES),
    *(BioCase("esm2-650m", *shape) for shape in ((1, 512), (8, 512))),
    *(BioCase("protbert", *shape) for shape in ((1, 512), (32, 256))),
    BioCase("esm2-650m", 64),
)
HEADS = tuple(BioCase(model, 16, head=True) for model in ("esm2-8m", "bert-small"))
LARGE_MODELS = tuple(
    BioCase(model, *shape) for model in ("esm2-650m", "protbert") for shape in SHAPES
)
PROTEOMES = tuple(
    BioCase(model, 64, proteins=PROTEOME) for model in ("esm2-8m", "esm2-650m", "esm2-3b")
)
CASES = {case.name: case for case in (*FIRST_CASES, *HEADS, *LARGE_MODELS, *PROTEOMES)}
FLOAT_CASES = {*(name for name in CASES if name.startswith("esm2-8m")), "esm2-650m-1x512"}
HALF_CASES = {"esm2-8m-32x256", "esm2-650m-8x512", "protbert-32x256", "esm2-650m-padded-64"}


class Answers(NamedTuple):
    """Hidden states and logits of all tokens except padding, on the CPU, in float64."""

    hidden: Tensor
    logits: Tensor | None = None


def compiled(model: nn.Module, inputs: Inputs) -> Step:
    """Compile the model with the best mode of ``torch.compile``."""
    return eager(torch.compile(model, mode="max-autotune"), inputs)


def accelerated(precision: str, model: nn.Module, inputs: Inputs) -> Step:
    """Accelerate the model; raise if it falls back on the forward that it is compared with."""
    from mlff_triton.bio import FallbackWarning, accelerate

    warnings.simplefilter("error", FallbackWarning)
    return eager(accelerate(model, precision=precision), inputs)


@dataclass(frozen=True)
class Implementation:
    """Implementation of a forward pass: attention, dtype of parameters, and how it is run."""

    name: str
    run: Callable[[nn.Module, Inputs], Step]
    attention: str = "sdpa"
    dtype: torch.dtype = torch.float16
    tolerance: float = PEER_TOLERANCE
    needs_gpu: bool = False

    def prepare(self, case: BioCase, device: torch.device) -> tuple[Step, Callable[[Any], Answers]]:
        """Return the function to time, and one that extracts the answers from its result."""
        model, inputs = ARCHITECTURES[case.model], case.inputs(device)
        model = model.build(self.attention, device, head=case.head)
        # Buffers stay in float32: rounded rotary frequencies would add to the errors of peers.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(self.dtype)

        def without_padding(output: Tensor) -> Tensor:
            return output[inputs["attention_mask"].bool()].cpu().double()

        def read(result: Any) -> Answers:
            if not case.head:
                return Answers(without_padding(result.last_hidden_state))
            hidden = model.base_model(**inputs).last_hidden_state
            return Answers(without_padding(hidden), without_padding(result.logits))

        with torch.inference_mode():
            return self.run(model, inputs), read


REFERENCE = Implementation("reference", eager, attention="eager", dtype=torch.float32)
OURS, OURS_FP32 = (
    Implementation(
        f"accelerated-{precision}",
        partial(accelerated, precision),
        dtype=torch.float32,
        tolerance=OUR_TOLERANCE,
    )
    for precision in ("fp16", "fp32")
)
OURS_HALF = Implementation(  # of a model whose parameters are in half precision
    "accelerated-half", partial(accelerated, None), tolerance=OUR_TOLERANCE
)
HALF = Implementation("sdpa-fp16", eager)
PEERS = (
    HALF,
    Implementation("sdpa-fp16-graph", graphed, needs_gpu=True),
    Implementation("compile-fp16", compiled, needs_gpu=True),
)
IMPLEMENTATIONS = {
    implementation.name: implementation
    for implementation in (OURS, OURS_FP32, OURS_HALF, REFERENCE, *PEERS)
}


def cosine_error(actual: Answers, expected: Answers) -> float:
    """Return one minus the smallest cosine similarity of a token's hidden states."""
    cosine = torch.cosine_similarity(actual.hidden, expected.hidden, dim=-1)
    return float((1 - cosine).clamp(min=0).max())


def largest_error(actual: Answers, expected: Answers) -> float:
    """Return the largest difference of hidden states, relative to the largest of them."""
    return float((actual.hidden - expected.hidden).abs().max() / expected.hidden.abs().max())


def changed_choices(actual: Answers, expected: Answers) -> float:
    """Count tokens whose best logit has changed, among those where it leads by `MARGIN`."""
    logits, choices = expected.logits.topk(2)
    stands_out = logits[:, 0] - logits[:, 1] > MARGIN
    return float((actual.logits.argmax(-1) != choices[:, 0])[stands_out].sum())


class Comparison(NamedTuple):
    """Comparison of a case with float32, which makes one row of the results.

    Attributes
    ----------
    bench, case : str
        Names in the results.
    error : callable
        Error of the answers (first argument) with respect to those in float32 (second).
    limit : float
        Largest error that passes.
    """

    bench: str
    case: str
    error: Callable[[Answers, Answers], float]
    limit: float


def comparisons(case: BioCase, implementation: Implementation) -> list[Comparison]:
    """List the comparisons of an implementation; none if it is left out of the case."""
    if not case.head:
        names = {OURS_FP32: FLOAT_CASES, OURS_HALF: HALF_CASES}.get(implementation, CASES)
        if case.name not in names:
            return []
        return [Comparison("bio", case.name, cosine_error, implementation.tolerance)]
    if implementation not in (OURS, OURS_FP32, HALF):
        return []
    kind, error = (
        ("hidden", largest_error) if implementation is OURS_FP32 else ("cosine", cosine_error)
    )
    return [
        Comparison("bio-fidelity", f"{case.model}-{kind}", error, implementation.tolerance),
        Comparison("bio-fidelity", f"{case.model}-top1", changed_choices, 0.0),
    ]


def run_bio(lab: Lab, names: Sequence[str], implementations: Sequence[str]) -> None:
    """Measure the named cases with each of the named implementations."""
    if names and find_spec("transformers") is None:
        print("bio: skipped, transformers is not installed", file=sys.stderr)
        return
    for case in map(CASES.__getitem__, names):
        for implementation in map(IMPLEMENTATIONS.__getitem__, implementations):
            if lab.budget.left <= 0:
                print(f"bio {case.name}: skipped, the time is up", file=sys.stderr)
                return
            if not implementation.needs_gpu or lab.device.type == "cuda":
                run_one(lab, case, implementation)


def run_one(lab: Lab, case: BioCase, implementation: Implementation) -> None:
    """Report a row per comparison, without a time if the error is above the limit."""
    compared = comparisons(case, implementation)
    if not compared:
        return
    timing, errors = None, [None] * len(compared)
    clean_up(lab.device)
    try:
        with at_most(min(lab.budget.each, lab.budget.left)), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            timing, errors = _measure(lab, case, implementation, compared)
    except Exception as problem:  # noqa: BLE001 - the other implementations can still run
        lab.complain(f"bio {case.name} {implementation.name}", problem)
    size = case.inputs("cpu")["input_ids"].numel(), 0
    for one, error in zip(compared, errors, strict=True):
        passed = error is not None and error <= one.limit
        row = one.case, implementation.name, size, lab.where, timing if passed else None, error
        lab.report(make_row(one.bench, *row))


def _measure(
    lab: Lab, case: BioCase, implementation: Implementation, compared: Sequence[Comparison]
) -> tuple[Timing, list[float]]:
    """Compare, time, and compare again, as a replayed graph may be right only once."""
    expected = truth(case, lab.device)
    clean_up(lab.device)  # so that this memory does not count as the implementation's
    step, read = implementation.prepare(case, lab.device)
    with torch.inference_mode():
        before = read(step())
        reset_peak(lab.device)
        timing = measure(step, lab.device, seconds=lab.budget.sampling)
        after = read(step())
    errors = [[one.error(answers, expected) for answers in (before, after)] for one in compared]
    return timing, np.max(errors, axis=1).tolist()  # NaN counts as the largest


@lru_cache(maxsize=1)
def truth(case: BioCase, device: torch.device) -> Answers:
    """Return the answers of the model as shipped, in float32."""
    step, read = REFERENCE.prepare(case, device)
    with torch.inference_mode():
        return read(step())
