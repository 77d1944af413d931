"""Protein language models: a forward pass, ours against all ways to run the model as it is shipped.

Weights are random, of the sizes of the published models. What counts is the direction of each
token's last hidden state: the error is one minus its smallest cosine similarity to float32. Models
with language heads are held against float32 in other ways, too.
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
MARGIN = 1e-3  # of a best logit over the next one: nearer ones may change places
MEDIAN, SPREAD, SHORTEST, LONGEST = 300, 0.6, 50, 1000  # residues of proteins, log-normal

Inputs = dict[str, Tensor]
Step = Callable[[], Any]


class Architecture(NamedTuple):
    """A model of transformers: what its classes there begin with, and its size."""

    family: str
    layers: int
    width: int
    heads: int

    def build(self, attention: str, device: torch.device, *, head: bool) -> nn.Module:
        """The model in float32, with or without its language head; always the same weights."""
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
    """Weights that let every layer, its attention too, tell tokens apart."""
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
    "protbert": Architecture("Bert", 30, 1024, 16),
    "bert-small": Architecture("Bert", 4, 512, 8),
}


@dataclass(frozen=True)
class BioCase:
    """A model and what it reads; without a length, proteins of many lengths, padded."""

    model: str
    batch: int
    length: int | None = None
    head: bool = False

    @property
    def name(self) -> str:
        """As in the results."""
        shape = f"padded-{self.batch}" if self.length is None else f"{self.batch}x{self.length}"
        return f"{self.model}-{shape}" + ("-head" if self.head else "")

    def inputs(self, device: torch.device | str) -> Inputs:
        """Tokens and their mask, [B, L]."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        lengths = np.full(self.batch, self.length)
        if self.length is None:
            drawn = rng.lognormal(np.log(MEDIAN), SPREAD, self.batch)
            lengths = drawn.clip(SHORTEST, LONGEST).astype(int)
        mask = np.arange(lengths.max()) < lengths[:, None]
        padding = FAMILIES[ARCHITECTURES[self.model].family]["pad_token_id"]
        ids = np.where(mask, rng.integers(4, 24, mask.shape), padding)
        arrays = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


SHAPES = ((1, 128), (1, 512), (1, 1022), (8, 512), (32, 256))
MOST_WANTED = (  # first, should time run out
    *(BioCase("esm2-8m", *shape) for shape in SHAPES),
    *(BioCase("esm2-650m", *shape) for shape in ((1, 512), (8, 512))),
    *(BioCase("protbert", *shape) for shape in ((1, 512), (32, 256))),
    BioCase("esm2-650m", 64),
)
HEADS = tuple(BioCase(model, 16, head=True) for model in ("esm2-8m", "bert-small"))
EVERY = tuple(BioCase(model, *shape) for model in ("esm2-650m", "protbert") for shape in SHAPES)
CASES = {case.name: case for case in (*MOST_WANTED, *HEADS, *EVERY)}
FLOAT_CASES = {*(name for name in CASES if name.startswith("esm2-8m")), "esm2-650m-1x512"}
HALF_CASES = {"esm2-8m-32x256", "esm2-650m-8x512", "protbert-32x256", "esm2-650m-padded-64"}


class Answers(NamedTuple):
    """What a model says of all tokens that are no padding; on the CPU, in float64."""

    hidden: Tensor
    logits: Tensor | None = None


def compiled(model: nn.Module, inputs: Inputs) -> Step:
    """``torch.compile`` at its best."""
    return eager(torch.compile(model, mode="max-autotune"), inputs)


def accelerated(precision: str, model: nn.Module, inputs: Inputs) -> Step:
    """Ours, which must not fall back on what it is compared with."""
    from mlff_triton.bio import FallbackWarning, accelerate

    warnings.simplefilter("error", FallbackWarning)
    return eager(accelerate(model, precision=precision), inputs)


@dataclass(frozen=True)
class Way:
    """One way to run a model, from its attention and parameters to a call without arguments."""

    name: str
    run: Callable[[nn.Module, Inputs], Step]
    attention: str = "sdpa"
    dtype: torch.dtype = torch.float16
    tolerance: float = PEER_TOLERANCE
    needs_gpu: bool = False

    def prepare(self, case: BioCase, device: torch.device) -> tuple[Step, Callable[[Any], Answers]]:
        """What is timed, and what reads its result."""
        model, inputs = ARCHITECTURES[case.model], case.inputs(device)
        model = model.build(self.attention, device, head=case.head)
        for parameter in model.parameters():  # not angles of rotary embeddings: no peer need be off
            parameter.data = parameter.data.to(self.dtype)

        def real(output: Tensor) -> Tensor:
            return output[inputs["attention_mask"].bool()].cpu().double()

        def read(result: Any) -> Answers:
            if not case.head:
                return Answers(real(result.last_hidden_state))
            hidden = model.base_model(**inputs).last_hidden_state
            return Answers(real(hidden), real(result.logits))

        with torch.inference_mode():
            return self.run(model, inputs), read


REFERENCE = Way("reference", eager, attention="eager", dtype=torch.float32)
OURS, OURS_FP32 = (
    Way(
        f"accelerated-{precision}",
        partial(accelerated, precision),
        dtype=torch.float32,
        tolerance=OUR_TOLERANCE,
    )
    for precision in ("fp16", "fp32")
)
OURS_OF_HALF = Way(  # of a model that is in half precision itself
    "accelerated-half", partial(accelerated, None), tolerance=OUR_TOLERANCE
)
HALF = Way("sdpa-fp16", eager)
PEERS = (
    HALF,
    Way("sdpa-fp16-graph", graphed, needs_gpu=True),
    Way("compile-fp16", compiled, needs_gpu=True),
)
WAYS = {way.name: way for way in (OURS, OURS_FP32, OURS_OF_HALF, REFERENCE, *PEERS)}


def cosine_error(actual: Answers, expected: Answers) -> float:
    """How far the worst token's direction is off: one minus the cosine of the angle."""
    cosine = torch.cosine_similarity(actual.hidden, expected.hidden, dim=-1)
    return float((1 - cosine).clamp(min=0).max())


def largest_error(actual: Answers, expected: Answers) -> float:
    """The largest difference of hidden states over the largest of them."""
    return float((actual.hidden - expected.hidden).abs().max() / expected.hidden.abs().max())


def changed_choices(actual: Answers, expected: Answers) -> float:
    """Tokens with another best logit, of those where it stands out."""
    logits, choices = expected.logits.topk(2)
    stands_out = logits[:, 0] - logits[:, 1] > MARGIN
    return float((actual.logits.argmax(-1) != choices[:, 0])[stands_out].sum())


class Question(NamedTuple):
    """A row: what of a case is held against float32, and how far it may be off."""

    bench: str
    case: str
    off: Callable[[Answers, Answers], float]
    limit: float


def questions(case: BioCase, way: Way) -> list[Question]:
    """All that is asked of a way to run a case; nothing where it is not compared."""
    if not case.head:
        some = {OURS_FP32: FLOAT_CASES, OURS_OF_HALF: HALF_CASES}
        asked = case.name in some.get(way, CASES)
        return asked * [Question("bio", case.name, cosine_error, way.tolerance)]
    if way not in (OURS, OURS_FP32, HALF):
        return []
    kind, off = ("hidden", largest_error) if way is OURS_FP32 else ("cosine", cosine_error)
    return [
        Question("bio-fidelity", f"{case.model}-{kind}", off, way.tolerance),
        Question("bio-fidelity", f"{case.model}-top1", changed_choices, 0.0),
    ]


def run_bio(lab: Lab, names: Sequence[str], ways: Sequence[str]) -> None:
    """Measure cases in each of the ways that are named."""
    if names and find_spec("transformers") is None:
        print("bio: skipped, transformers is not installed", file=sys.stderr)
        return
    for case in map(CASES.__getitem__, names):
        for way in map(WAYS.__getitem__, ways):
            if lab.budget.left <= 0:
                print(f"bio {case.name}: skipped, the time is up", file=sys.stderr)
                return
            if not way.needs_gpu or lab.device.type == "cuda":
                run_one(lab, case, way)


def run_one(lab: Lab, case: BioCase, way: Way) -> None:
    """Report a row for each question; one whose answer is too far off has no time."""
    asked = questions(case, way)
    if not asked:
        return
    timing, errors = None, [None] * len(asked)
    clean_up(lab.device)
    try:
        with at_most(min(lab.budget.each, lab.budget.left)), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            timing, errors = _examine(lab, case, way, asked)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the others can still run
        lab.complain(f"bio {case.name} {way.name}", problem)
    size = case.inputs("cpu")["input_ids"].numel(), 0
    for one, error in zip(asked, errors, strict=True):
        right = error is not None and error <= one.limit
        row = one.case, way.name, size, lab.where, timing if right else None, error
        lab.report(make_row(one.bench, *row))


def _examine(
    lab: Lab, case: BioCase, way: Way, asked: Sequence[Question]
) -> tuple[Timing, list[float]]:
    """Ask, time, and ask again: a replayed graph may be right only once."""
    expected = truth(case, lab.device)
    clean_up(lab.device)  # the memory that this took is not the implementation's
    step, read = way.prepare(case, lab.device)
    with torch.inference_mode():
        before = read(step())
        reset_peak(lab.device)
        timing = measure(step, lab.device, seconds=lab.budget.sampling)
        after = read(step())
    errors = [[one.off(answers, expected) for answers in (before, after)] for one in asked]
    return timing, np.max(errors, axis=1).tolist()  # NaN is the largest


@lru_cache(maxsize=1)
def truth(case: BioCase, device: torch.device) -> Answers:
    """What the model says as it is shipped, in float32."""
    step, read = REFERENCE.prepare(case, device)
    with torch.inference_mode():
        return read(step())
