"""Conditioned updates, compared with their references in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.numerics.split import SplitOperand
from mlff_triton.kernels.pairs.conditioning import (
    conditioned_attention_,
    conditioned_layers_,
    conditioned_transition_,
)
from mlff_triton.kernels.pairs.reference import conditioning as reference
from mlff_triton.kernels.pairs.reference import wide_rows
from mlff_triton.kernels.pairs.types import (
    ConditionedAttentionWeights,
    ConditionedTransitionWeights,
    Conditions,
)
from mlff_triton.kernels.pairs.wide_rows import adaptive_norm
from mlff_triton.testing import assert_within
from tests.kernels.pairs.cases import (
    BOUNDS,
    dtypes,
    random,
    random_map,
    random_mask,
    to,
)

pytestmark = pytest.mark.usefixtures("described")

SIZES = [  # batches, samples, tokens, channels, heads
    *((1, 1, 1, 16, 1), (2, 3, 17, 48, 2), (1, 5, 20, 96, 4)),
    pytest.param((1, 2, 131, 768, 16), marks=pytest.mark.gpu),  # of Boltz-2
]


def conditions(batch: int, n: int, channels: int, precision: torch.dtype) -> Conditions:
    """Return random terms in float64 that all samples share."""
    return Conditions(*(random(batch, 1, n, channels, dtype=precision) for _ in range(3)))


def shared(terms: Conditions, samples: int) -> Conditions:
    """Expand terms to samples."""
    return Conditions(*(x.expand(-1, samples, -1, -1) for x in terms[:3]), terms.eps)


def split(weights, device):
    """Split the maps of weights, but not biases."""
    maps = {name: SplitOperand.of(x) for name, x in weights._asdict().items() if x.dim() > 1}
    moved = {name: SplitOperand(*(x.to(device) for x in rows)) for name, rows in maps.items()}
    return weights._replace(**moved)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_split_weights(size, device):
    batch, samples, n, channels, heads = size
    x, precision = random(batch, samples, n, channels, dtype=torch.float32), torch.float32
    terms = conditions(batch, n, channels, precision)
    bias = random(batch, heads, n, n, dtype=precision)
    attention = ConditionedAttentionWeights(
        random_map(4 * channels, channels, precision),
        random(4 * channels, dtype=precision),
        random_map(channels, channels, precision),
    )
    transition = ConditionedTransitionWeights(
        random_map(6 * channels, channels, precision),
        random_map(channels, 2 * channels, precision),
    )
    exact = x + reference.conditioned_attention_update(x, terms, bias, attention)
    exact += reference.conditioned_transition_update(exact, terms, transition)
    moved = shared(Conditions(*to(terms[:3], device, precision)), samples)
    found = x.to(device, precision)
    given = attention._replace(inputs_bias=attention.inputs_bias.to(device, precision))
    conditioned_attention_(found, moved, bias.to(device, precision), split(given, device))
    conditioned_transition_(found, moved, split(transition, device))
    assert_within(found.cpu(), exact, BOUNDS[precision])


@dtypes
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_adaptive_norm(size, precision, device):
    batch, samples, n, channels, _ = size
    x = random(batch, samples, n, channels, dtype=precision)
    terms = conditions(batch, n, channels, precision)
    exact = wide_rows.adaptive_norm(x, terms.scale, terms.shift, 1e-5, torch.float64)
    moved = shared(Conditions(*to(terms[:3], device, precision)), samples)
    found = adaptive_norm(x.to(device, precision), moved[0], moved[1], 1e-5, precision)
    assert found.dtype is precision
    assert_within(found.cpu(), exact, BOUNDS[precision])


@dtypes
@pytest.mark.parametrize("windows", [0, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_conditioned_attention(size, windows, precision, device):
    batch, samples, n, channels, heads = size
    n = 16 * windows or n
    x = random(batch, samples, n, channels, dtype=precision)
    terms = conditions(batch, n, channels, precision)
    shape = (windows, heads, 16, 32) if windows else (heads, n, n)
    bias = random(batch, *shape, dtype=precision)
    given = ConditionedAttentionWeights(
        random_map(4 * channels, channels, precision),
        random(4 * channels, dtype=precision),
        random_map(channels, channels, precision),
    )
    mask = torch.ones(batch, samples, n)
    mask[..., n - n // 4 :] = 0
    update = reference.conditioned_attention_update(x, terms, bias, given, mask)
    moved = Conditions(*to(terms[:3], device, precision))
    rest = to((bias, given, mask), device, precision)
    found = x.to(device, torch.float32)
    result = conditioned_attention_(found, shared(moved, samples), *rest)
    assert result is found
    assert_within(found.cpu().double() - x, update, BOUNDS[precision])


@dtypes
@pytest.mark.parametrize("factors", [1, 2])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_conditioned_transition(size, factors, precision, device):
    batch, samples, n, channels, _ = size
    x = random(batch, samples, n, channels, dtype=precision)
    terms = conditions(batch, n, channels, precision)
    given = ConditionedTransitionWeights(
        random_map((2 + 2 * factors) * channels, channels, precision),
        random_map(channels, 2 * channels, precision),
    )
    update = reference.conditioned_transition_update(x, terms, given)
    moved = Conditions(*to(terms[:3], device, precision))
    weights = to(given, device, precision)
    found = x.to(device, torch.float32)
    assert conditioned_transition_(found, shared(moved, samples), weights) is found
    assert_within(found.cpu().double() - x, update, BOUNDS[precision])


@dtypes
@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "split"])
def test_layers(is_split, precision, device):
    """Results of layers are those of their updates one by one, to the last bit."""
    batch, samples, n, channels, heads = 2, 3, 17, 48, 2
    layers, terms, biases = [], [], []
    for _ in range(2):
        maps = [random_map(k * channels, channels, precision) for k in (4, 1, 6)]
        attention = ConditionedAttentionWeights(
            maps[0], random(4 * channels, dtype=precision), maps[1]
        )
        down = random_map(channels, 2 * channels, precision)
        layer = to((attention, ConditionedTransitionWeights(maps[2], down)), device, precision)
        layers.append(tuple(split(each, device) for each in layer) if is_split else layer)
        biases.append(random(batch, heads, n, n, dtype=precision).to(device, precision))
        given = [conditions(batch, n, channels, precision) for _ in range(2)]
        terms += [shared(Conditions(*to(each[:3], device, precision)), samples) for each in given]
    mask = random_mask(batch, samples, n).to(device)
    rows = torch.float32 if is_split else precision
    x = random(batch, samples, n, channels, dtype=precision).to(device, rows)
    expected = x.clone()
    for k, (attention, transition) in enumerate(layers):
        conditioned_attention_(expected, terms[2 * k], biases[k], attention, mask)
        conditioned_transition_(expected, terms[2 * k + 1], transition)
    found = conditioned_layers_(x, terms, biases, layers, mask)
    assert found is x
    assert torch.equal(found, expected)
    assert conditioned_layers_(x, [], [], []) is x
    wrong = transition._replace(inputs=attention.out)
    with pytest.raises(InputError, match="rows"):
        conditioned_layers_(x, terms, biases, [(attention, wrong)] * 2)


def test_rows_that_are_not_numbers_are_seen(device):
    x, scale, shift = torch.randn(3, 1, 2, 5, 16, device=device)
    x[0, 1, 2, 3] = torch.nan
    found = adaptive_norm(x, scale, shift, 1e-5, torch.float32).isnan()
    assert found[0, 1, 2].all()
    assert found.sum() == 16


def test_empty(device):
    x = torch.empty(1, 0, 5, 16, device=device)
    given = ConditionedTransitionWeights(
        *(torch.ones(s, device=device) for s in ((64, 16), (16, 32)))
    )
    assert not conditioned_transition_(x, Conditions(x, x, x), given).numel()


def test_bad_arguments_are_refused(device):
    x = torch.ones(1, 2, 5, 16, device=device)
    given = ConditionedTransitionWeights(
        *(torch.ones(s, device=device) for s in ((64, 16), (16, 32)))
    )
    with pytest.raises(InputError, match="scale has the shape"):
        conditioned_transition_(x, Conditions(x[:, :1], x, x), given)
    with pytest.raises(InputError, match="down has the shape"):
        conditioned_transition_(x, Conditions(x, x, x), given._replace(down=given.inputs))
    with pytest.raises(InputError, match="use 2 or 3 times 32"):
        conditioned_transition_(x, Conditions(x, x, x), given._replace(inputs=given.inputs[:40]))
    with pytest.raises(InputError, match="use float16, bfloat16 or float32"):
        adaptive_norm(x.double(), x, x, 1e-5, torch.float32)
    with pytest.raises(InputError, match="channels of shift must be contiguous"):
        adaptive_norm(x, x, x.repeat_interleave(2, -1)[..., ::2], 1e-5, torch.float32)
    weights = ConditionedAttentionWeights(
        torch.ones(64, 16, device=device), None, torch.ones(16, 16, device=device)
    )
    bias = torch.ones(1, 3, 5, 5, device=device)
    with pytest.raises(InputError, match="not divisible by 3 heads"):
        conditioned_attention_(x, Conditions(x, x, x), bias, weights)
