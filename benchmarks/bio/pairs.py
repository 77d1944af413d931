"""Bench ``pairs``: operators on pairs of tokens, ours and those of peers, in the same run.

Cases are triangle multiplication, the core of triangle attention, a transition, and whole blocks
that update pairs, with 128 channels and the number of tokens in their names. Weights are random and
none is zero. Peers are plain PyTorch, cuEquivariance and trifast; blocks are those of Boltz and of
OpenFold3, with and without the kernels of cuEquivariance.

The truth is plain PyTorch in float64. An error is the largest one of an output over the largest
true output. Our kernels add updates to pairs. Peers return updates, which are added in float64
before they are compared, and outside of the time.

In half precision, blocks run under autocast. Boltz keeps pairs in float32 between its updates, and
OpenFold3 passes them to its blocks in bfloat16, as does Protenix.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear, silu

from benchmarks.bio.boltz import randomize
from benchmarks.lab.guards import at_most, clean_up, quiet
from benchmarks.lab.lab import Lab
from benchmarks.lab.schema import make_row
from mlff_triton._common.timing import measure, reset_peak
from mlff_triton.bio.core.weights import with_parts
from mlff_triton.kernels.pairs.types import TransitionWeights, TriangleWeights

BENCH = "pairs"
SIZES = (256, 512, 768, 1024)
CHANNELS, HEADS, DIM = 128, 4, 32
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LIMITS = {"bf16": 2e-2, "fp32": 1e-5}
"""Largest errors of our kernels. Peers lose what they lose."""
OURS = "triton"

Call = Callable[[], Tensor]


class Setup(NamedTuple):
    """Inputs and weights of a case, in float64.

    Attributes
    ----------
    z : [1, N, N, C]
        Pairs; for the core of attention, queries, keys and values [3, 1, N, N, H, D].
    weights : tuple or Module
        Weights of an operator, the biases of attention, or a block.
    """

    z: Tensor
    weights: Any


class Operator(NamedTuple):
    """An operator and its implementations.

    Attributes
    ----------
    setup : callable
        Make inputs and weights for a number of tokens, on a device.
    truth : callable
        Compute the output in float64.
    ways : dict
        Functions that prepare a call in a dtype, by the name of the implementation.
    updates : bool
        True if peers return updates, which have yet to be added to pairs.
    """

    setup: Callable[[int, torch.device], Setup]
    truth: Callable[[Setup], Tensor]
    ways: dict[str, Callable[[Setup, torch.dtype], Call]]
    updates: bool = False


PEERS = {"cuequivariance": "cuequivariance_torch", "trifast": "trifast"}
"""Packages of implementations that need one."""


def _random(*shape: int, device: torch.device, seed: int) -> Tensor:
    rng = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=rng, device=device)


def _norm(device: torch.device, seed: int) -> tuple[Tensor, Tensor, float]:
    noise = _random(2, CHANNELS, device=device, seed=seed).double() / 4
    return 1 + noise[0], noise[1], 1e-5


def _maps(shapes: Sequence[tuple[int, int]], device: torch.device) -> list[Tensor]:
    return [
        _random(*shape, device=device, seed=seed).double() * shape[1] ** -0.5
        for seed, shape in enumerate(shapes)
    ]


def _pairs(n: int, device: torch.device) -> Tensor:
    return _random(1, n, n, CHANNELS, device=device, seed=n)


def _cast(weights: Any, dtype: torch.dtype) -> Any:
    """Convert the weights of an operator."""
    if isinstance(weights, Tensor):
        return weights.to(dtype)
    if not isinstance(weights, tuple):
        return weights
    return with_parts(weights, (_cast(part, dtype) for part in weights))


# Triangle multiplication


def _triangle(n: int, device: torch.device) -> Setup:
    wide, square = (2 * CHANNELS, CHANNELS), (CHANNELS, CHANNELS)
    maps = _maps([wide, wide, square, square], device)
    return Setup(_pairs(n, device), TriangleWeights(_norm(device, 8), _norm(device, 9), *maps))


def _multiplied(z: Tensor, w: TriangleWeights) -> Tensor:
    """Return the update of pairs in plain PyTorch."""
    x = layer_norm(z, z.shape[-1:], *w.norm_in)
    a, b = (linear(x, w.project_in) * linear(x, w.gate_in).sigmoid()).chunk(2, -1)
    sums = torch.einsum("bikd,bjkd->bijd", a, b)
    y = layer_norm(sums, sums.shape[-1:], *w.norm_out)
    return linear(y, w.project_out) * linear(x, w.gate_out).sigmoid()


def _triangle_ours(setup: Setup, dtype: torch.dtype) -> Call:
    from mlff_triton.kernels.pairs.triangle_multiplication import triangle_multiplication_

    weights = _cast(setup.weights, dtype)
    return _in_place(setup, dtype, lambda z: triangle_multiplication_(z, weights))


def _triangle_torch(setup: Setup, dtype: torch.dtype) -> Call:
    z, weights = setup.z.to(dtype), _cast(setup.weights, dtype)
    return lambda: _multiplied(z, weights)


def _triangle_cuequivariance(setup: Setup, dtype: torch.dtype) -> Call:
    from cuequivariance_torch import triangle_multiplicative_update

    z, w = setup.z.to(dtype), _cast(setup.weights, dtype)
    mask = z.new_ones(z.shape[:-1])
    named = {
        f"{name}_{part}": value
        for name in ("norm_in", "norm_out")
        for part, value in zip(("weight", "bias"), getattr(w, name), strict=False)
    }
    named |= {"p_in_weight": w.project_in, "g_in_weight": w.gate_in}
    named |= {"p_out_weight": w.project_out, "g_out_weight": w.gate_out}
    return lambda: triangle_multiplicative_update(z, direction="outgoing", mask=mask, **named)


# The core of triangle attention


def _attention(n: int, device: torch.device) -> Setup:
    vectors = _random(3, 1, n, n, HEADS, DIM, device=device, seed=n)
    return Setup(vectors, _random(1, HEADS, n, n, device=device, seed=n + 1))


def _attended(setup: Setup) -> Tensor:
    """Return the outputs in float64, row by row."""
    bias, out = setup.weights[0].double(), []
    for row in range(setup.z.shape[2]):
        q, k, v = (x.transpose(0, 1).double() for x in setup.z[:, 0, row])
        weights = (q @ k.mT * DIM**-0.5 + bias).softmax(-1)
        out.append((weights @ v).transpose(0, 1))
    return torch.stack(out)[None]


def _heads_first(setup: Setup, dtype: torch.dtype) -> Tensor:
    """Return queries, keys and values [3, 1, N, H, N, D], in the layout that is read fastest."""
    return setup.z.to(dtype).transpose(3, 4).contiguous()


def _attention_ours(setup: Setup, dtype: torch.dtype) -> Call:
    from mlff_triton.kernels.pairs.pair_attention import triangle_attention

    q, k, v = _heads_first(setup, dtype).transpose(3, 4)
    bias = setup.weights.to(dtype)
    return lambda: triangle_attention(q, k, v, bias)


def _attention_torch(setup: Setup, dtype: torch.dtype) -> Call:
    q, k, v = _heads_first(setup, dtype)
    n = q.shape[1]
    bias = setup.weights.to(dtype)[:, None].expand(1, n, HEADS, n, n)
    attend = nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, attn_mask=bias).transpose(2, 3)


def _attention_cuequivariance(setup: Setup, dtype: torch.dtype) -> Call:
    from cuequivariance_torch import triangle_attention

    q, k, v = _heads_first(setup, dtype)
    n = q.shape[1]
    mask = torch.ones(1, n, 1, 1, n, device=q.device, dtype=torch.bool)
    bias, scale = setup.weights[:, None].float(), 1 / math.sqrt(DIM)
    return lambda: triangle_attention(q, k, v, bias, mask=mask, scale=scale).transpose(2, 3)


def _attention_trifast(setup: Setup, dtype: torch.dtype) -> Call:
    from trifast import triangle_attention

    q, k, v = (x.transpose(1, 2).contiguous() for x in _heads_first(setup, dtype))
    mask = torch.zeros(q.shape[0], *q.shape[2:4], device=q.device, dtype=torch.bool)
    bias = setup.weights.to(dtype)
    return lambda: triangle_attention(q, k, v, bias, mask).permute(0, 2, 3, 1, 4)


# Transition


def _transition(n: int, device: torch.device) -> Setup:
    hidden = 4 * CHANNELS
    maps = _maps([(hidden, CHANNELS), (hidden, CHANNELS), (CHANNELS, hidden)], device)
    return Setup(_pairs(n, device), TransitionWeights(_norm(device, 8), *maps))


def _transformed(z: Tensor, w: TransitionWeights) -> Tensor:
    x = layer_norm(z, z.shape[-1:], *w.norm)
    return linear(silu(linear(x, w.gate)) * linear(x, w.up), w.down)


def _transition_ours(setup: Setup, dtype: torch.dtype) -> Call:
    from mlff_triton.kernels.pairs.transition import transition_

    weights = _cast(setup.weights, dtype)
    return _in_place(setup, dtype, lambda z: transition_(z, weights))


def _transition_torch(setup: Setup, dtype: torch.dtype) -> Call:
    z, weights = setup.z.to(dtype), _cast(setup.weights, dtype)
    return lambda: _transformed(z, weights)


def _by_rows(update: Callable[[Tensor, Any], Tensor]) -> Callable[[Setup], Tensor]:
    """Return the truth of an update of single pairs, row by row to save memory."""

    def truth(setup: Setup) -> Tensor:
        rows = (row.double() for row in setup.z[0])
        return torch.stack([z + update(z, setup.weights) for z in rows])[None]

    return truth


# Blocks


def _block(n: int, device: torch.device) -> Setup:
    from boltz.model.layers.pairformer import PairformerNoSeqLayer

    block = randomize(PairformerNoSeqLayer(CHANNELS).to(device), 1)
    return Setup(_pairs(n, device), block.eval())


def _openfold3_block(n: int, device: torch.device) -> Setup:
    from openfold3.core.model.latent.base_blocks import PairBlock

    block = PairBlock(
        c_z=CHANNELS,
        c_hidden_mul=CHANNELS,
        c_hidden_pair_att=DIM,
        no_heads_pair=HEADS,
        transition_type="swiglu",
        transition_n=4,
        pair_dropout=0.25,
        fuse_projection_weights=False,
        inf=1e9,
    )
    return Setup(_pairs(n, device), randomize(block.to(device), 1).eval())


def _block_truth(**options: int) -> Callable[[Setup], Tensor]:
    """Return a function for the pairs that a block computes in float64, by chunks of attention."""

    def truth(setup: Setup) -> Tensor:
        z = setup.z.double()
        with patch.object(Tensor, "float", Tensor.double):  # to which Boltz converts in some places
            return setup.weights.double()(z, _ones(z), **options)  # type: ignore[no-any-return]

    return truth


def _ones(z: Tensor) -> Tensor:
    return torch.ones(z.shape[:-1], device=z.device, dtype=z.dtype)


def _block_ours(setup: Setup, dtype: torch.dtype) -> Call:
    from mlff_triton import bio

    warnings.simplefilter("error", bio.FallbackWarning)
    precision = next(name for name, each in DTYPES.items() if each == dtype)
    return _block_of(bio.accelerate(setup.weights, precision=precision), setup, dtype)


def _block_upstream(**options: bool) -> Callable[[Setup, torch.dtype], Call]:
    return lambda setup, dtype: _block_of(setup.weights, setup, dtype, **options)


def _block_compiled(setup: Setup, dtype: torch.dtype) -> Call:
    return _block_of(torch.compile(setup.weights), setup, dtype)


def _block_of(block: Any, setup: Setup, dtype: torch.dtype, **options: bool) -> Call:
    """Call a block under autocast, unless the dtype is float32."""
    z = setup.z.to(dtype) if type(setup.weights).__name__ == "PairBlock" else setup.z
    mask = _ones(z)

    def call() -> Tensor:
        with torch.autocast(z.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
            return block(z, mask, **options)  # type: ignore[no-any-return]

    return call


def _block_operator(
    setup: Callable[[int, torch.device], Setup], chunks: str, kernels: str
) -> Operator:
    """Return the ways to call a block, whose arguments for chunks and kernels have these names."""
    return Operator(
        setup,
        _block_truth(**{chunks: 32}),
        {
            OURS: _block_ours,
            "cuequivariance": _block_upstream(**{kernels: True}),
            "compile": _block_compiled,
            "torch": _block_upstream(),
        },
    )


OPERATORS = {
    "triangle-multiplication": Operator(
        _triangle,
        lambda setup: setup.z.double() + _multiplied(setup.z.double(), setup.weights),
        {
            OURS: _triangle_ours,
            "cuequivariance": _triangle_cuequivariance,
            "torch": _triangle_torch,
        },
        updates=True,
    ),
    "triangle-attention": Operator(
        _attention,
        _attended,
        {
            OURS: _attention_ours,
            "cuequivariance": _attention_cuequivariance,
            "trifast": _attention_trifast,
            "torch": _attention_torch,
        },
    ),
    "transition": Operator(
        _transition,
        _by_rows(_transformed),
        {OURS: _transition_ours, "torch": _transition_torch},
        updates=True,
    ),
    "pair-block": _block_operator(_block, "chunk_size_tri_attn", "use_kernels"),
    "openfold3-block": _block_operator(_openfold3_block, "chunk_size", "use_cueq_triangle_kernels"),
}
PACKAGES = {"pair-block": "boltz", "openfold3-block": "openfold3"}
"""Packages of blocks."""
CASES = {f"{name}-{n}": (name, n) for name in OPERATORS for n in SIZES}
IMPLEMENTATIONS = tuple(
    f"{way}-{precision}"
    for precision in DTYPES
    for way in (OURS, "cuequivariance", "trifast", "compile", "torch")
)


def _in_place(setup: Setup, dtype: torch.dtype, update: Callable[[Tensor], Tensor]) -> Call:
    """Return a call whose first result is checked; later ones update the same pairs again."""
    z = setup.z.to(dtype, copy=True)
    return lambda: update(z)


def run_pairs(lab: Lab, names: Sequence[str], implementations: Sequence[str]) -> None:
    """Measure the named cases with each of the named implementations."""
    for name in names:
        package = PACKAGES.get(CASES[name][0])
        if package is not None and find_spec(package) is None:
            lab.skip(f"{BENCH} {name}", f"{package} is not installed")
            continue
        for implementation in implementations:
            way, _, precision = implementation.partition("-")
            if way not in OPERATORS[CASES[name][0]].ways:
                continue
            if way in PEERS and find_spec(PEERS[way]) is None:
                lab.skip(f"{BENCH} {name} {way}", f"{PEERS[way]} is not installed")
            elif lab.budget.left <= 0:
                print(f"{BENCH} {name}: skipped, the time is up", file=sys.stderr)
                return
            else:
                run_one(lab, name, way, precision)


def run_one(lab: Lab, name: str, way: str, precision: str) -> None:
    """Report a row, without a time if the error is above the limit."""
    (kind, n), dtype = CASES[name], DTYPES[precision]
    operator = OPERATORS[kind]
    timing = error = None
    clean_up(lab.device)
    try:
        with (
            at_most(lab.budget.left_for_one),
            quiet(),
            warnings.catch_warnings(),
            torch.inference_mode(),
        ):
            warnings.simplefilter("ignore")
            expected = truth(name, lab.device)
            setup = operator.setup(n, lab.device)
            call = operator.ways[way](setup, dtype)
            added_to = setup.z.to(dtype) if operator.updates and way != OURS else None
            error = _error(call(), expected, added_to)
            del added_to
            clean_up(lab.device)
            reset_peak(lab.device)
            timing = measure(call, lab.device, seconds=lab.budget.sampling)
    except Exception as problem:  # noqa: BLE001 - the other implementations can still run
        lab.complain(f"{BENCH} {name} {way}-{precision}", problem)
    limit = LIMITS[precision] if way == OURS else math.inf
    shown = None if error is None or not error <= limit else timing
    lab.report(make_row(BENCH, name, f"{way}-{precision}", (n, 0), lab.where, shown, error))


@lru_cache(maxsize=1)
def truth(name: str, device: torch.device) -> Tensor:
    """Return the output of a case in float64, on the CPU."""
    kind, n = CASES[name]
    operator = OPERATORS[kind]
    with torch.inference_mode():
        return operator.truth(operator.setup(n, device)).cpu()


def _error(actual: Tensor, expected: Tensor, added_to: Tensor | None = None) -> float:
    """Return the largest error over the largest true value."""
    if actual.shape != expected.shape:
        raise ValueError(f"the shape is {list(actual.shape)} instead of {list(expected.shape)}")
    largest = 0.0
    for row, true in enumerate(expected[0]):  # one at a time, to save memory
        found = actual[0, row].double()
        if added_to is not None:
            found = found + added_to[0, row].double()
        error = float((found.cpu() - true).abs().max())
        largest = error if math.isnan(error) else max(largest, error)
    return largest / float(expected.abs().max())
