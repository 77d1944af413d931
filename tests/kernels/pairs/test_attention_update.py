"""Updates by attention with biases of pairs, compared with their references in float64."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs import wide_layers
from mlff_triton.kernels.pairs.attention_update import (
    pair_biases,
    token_attention_,
    triangle_attention_,
)
from mlff_triton.kernels.pairs.reference import attention_update as reference
from mlff_triton.kernels.pairs.types import TokenAttentionWeights, TriangleAttentionWeights
from mlff_triton.testing import assert_within
from tests.kernels.pairs.cases import (
    BOUNDS,
    assert_no_worse,
    dtypes,
    norm,
    pooled,
    random,
    random_map,
    random_mask,
    spread,
    to,
)

pytestmark = pytest.mark.usefixtures("described")


def pair_weights(
    channels: int, heads: int, dim: int, precision: torch.dtype
) -> TriangleAttentionWeights:
    """Return random weights in float64, none of them zero."""
    width = heads * dim
    maps = [random_map(n, channels, precision) for n in (width, width, width, width, heads)]
    return TriangleAttentionWeights(
        norm(channels, precision), *maps, random_map(channels, width, precision)
    )


def token_weights(
    channels: int, heads: int, dim: int, precision: torch.dtype
) -> TokenAttentionWeights:
    """Return random weights in float64, none of them zero."""
    width = heads * dim
    maps = [random_map(width, channels, precision) for _ in range(4)]
    bias = random(width, dtype=precision)
    out = random_map(channels, width, precision)
    return TokenAttentionWeights(norm(channels, precision), *maps, out, bias)


LARGE = [(2, 9, 24, 2, 8), (1, 19, 64, 6, 12), (1, 23, 64, 4, 16), (1, 17, 128, 4, 32)]
"""Sizes of triangle attention that take the interpreter long."""

NODES = {
    "starting": {"ending": False},
    "ending": {"ending": True},
    "ending-query": {"ending": True, "bias_of_ending": "query"},
}


@dtypes
@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize(
    "size",
    [
        *((1, 1, 16, 1, 16), (2, 5, 24, 2, 8), (1, 35, 32, 1, 32)),
        *((1, 9, 64, 6, 12), (1, 11, 64, 4, 16), (1, 9, 128, 4, 32)),
        *(pytest.param(size, marks=pytest.mark.gpu) for size in LARGE),
    ],
    ids=str,
)
def test_triangle_attention(size, node, precision, device):
    """The update, which is the result less the pairs, is at least as exact as that of PyTorch.

    In float32, that holds in the sizes of models: from 64 channels on, in heads of 16 or more. The
    sums of PyTorch are better the shorter they are, and halves, which lack a bit of float32, not.
    With 64 channels, errors are 0.97 times those of PyTorch on a CPU, give or take 0.02 from one
    draw of weights to the next, so several are joined. The ending node has sums of the same sizes,
    which the interpreter need not compare again.
    """
    batch, n, channels, heads, dim = size

    def compare():
        given = pair_weights(channels, heads, dim, precision)
        z = random(batch, n, n, channels, dtype=precision)
        mask = random_mask(batch, n, n) if n > 1 else None
        update = reference.triangle_attention_update(z, given, mask, **NODES[node])
        rounded = (to(x, device, precision) for x in (z, given, mask))
        own = reference.triangle_attention_update(*rounded, **NODES[node])
        found = z.to(device, torch.float32)
        result = triangle_attention_(
            found, to(given, device, precision), to(mask, device, torch.float32), **NODES[node]
        )
        assert result is found
        assert_within(found.cpu().double() - z, update, BOUNDS[precision])
        return found, z + update, z.float() + own.cpu(), update

    single = precision == torch.float32
    is_large, is_quick = channels >= 64 and dim >= 16, node == "starting" or device == "cuda"
    is_compared = not single or (is_large and is_quick)
    n_runs = 4 if single and is_compared else 1
    found, exact, own, update = pooled(compare, batch * n * n, n_runs)
    if is_compared:
        assert_no_worse(found, exact, own, precision, scale=update)


def test_nodes_and_biases_are_views_of_each_other(device):
    """The ending node is the starting node of transposed pairs."""
    precision = torch.float32
    given = to(pair_weights(16, 2, 8, precision), device, precision)
    z = torch.randn(1, 7, 7, 16, device=device)
    turned = triangle_attention_(z.transpose(1, 2).contiguous(), given)
    ending = triangle_attention_(z.clone(), given, ending=True)
    assert torch.equal(ending, turned.transpose(1, 2))
    other = triangle_attention_(z.clone(), given, ending=True, bias_of_ending="query")
    assert not torch.equal(ending, other)


@pytest.mark.parametrize("n", [1, 17])
def test_residual_streams_in_half_precision(n, device):
    """Pairs in half precision are rounded once, after the addition."""
    precision = torch.bfloat16
    given, z = pair_weights(32, 1, 32, precision), random(1, n, n, 32, dtype=precision)
    exact = reference.triangle_attention_(z.clone(), given, ending=True)
    found = triangle_attention_(z.to(device, precision), to(given, device, precision), ending=True)
    assert found.dtype is precision
    assert_within(found.cpu(), exact, BOUNDS[precision])


@dtypes
@pytest.mark.parametrize(
    "size",
    [
        *((1, 1, 1, 16, 2, 8), (1, 2, 19, 96, 4, 24), (1, 2, 18, 136, 2, 24)),
        pytest.param((2, 3, 18, 384, 2, 48), marks=pytest.mark.gpu),
    ],
    ids=str,
)
def test_token_attention(size, precision, device):
    """Samples share their biases."""
    batch, samples, n, channels, heads, dim = size

    def compare():
        given = token_weights(channels, heads, dim, precision)
        s = random(batch, samples, n, channels, dtype=precision)
        bias = random(batch, heads, n, n, dtype=precision)
        mask = torch.ones(batch, samples, n)
        mask[..., n - n // 4 :] = 0
        update = reference.token_attention_update(s, bias, given, mask)
        rounded = (to(x, device, precision) for x in (s, bias, given, mask))
        own = reference.token_attention_update(*rounded)
        found = s.to(device, torch.float32)
        result = token_attention_(
            found, bias.to(device, precision), to(given, device, precision), mask.bool().to(device)
        )
        assert result is found
        assert_within(found.cpu().double() - s, update, BOUNDS[precision])
        return found, s + update, s.float() + own.cpu(), update

    found, exact, own, update = pooled(compare, batch * samples * n)
    n_split = 2 if channels > 128 else 1  # where they are products of their own
    assert_no_worse(found, exact, own, precision, scale=update, n_split=n_split)


@dtypes
def test_many_wide_tokens_are_multiplied_by_programs_of_their_own(precision, device, monkeypatch):
    monkeypatch.setattr(wide_layers, "_MOST_ROWS", 0)
    given = token_weights(256, 4, 32, precision)
    s, bias = random(1, 2, 19, 256, dtype=precision), random(1, 4, 19, 19, dtype=precision)
    update = reference.token_attention_update(s, bias, given)
    found = token_attention_(
        s.to(device, torch.float32), bias.to(device, precision), to(given, device, precision)
    )
    assert_within(found.cpu().double() - s, update, BOUNDS[precision])


@dtypes
@pytest.mark.parametrize("n", [1, 13])
def test_pair_biases(n, precision, device):
    channels, heads = 32, 16
    z, weight = random(2, n, n, channels, dtype=precision), random_map(heads, channels, precision)
    layer, shift = norm(channels, precision), random(heads, dtype=precision)
    for given in ((layer, weight), (layer, weight, shift)):
        found = pair_biases(z.to(device, torch.float32), *to(given, device, precision))
        assert found.dtype is precision
        assert found.shape == (2, heads, n, n)
        assert_within(found.cpu(), reference.pair_biases(z, *given), BOUNDS[precision])


@pytest.mark.filterwarnings("ignore:All-NaN")  # of NumPy, which finds the largest values
def test_pairs_that_are_not_numbers_are_seen(device):
    given = to(pair_weights(16, 1, 16, torch.float32), device, torch.float32)
    z = torch.randn(1, 5, 5, 16, device=device)
    z[0, 1, 2, 3] = torch.nan
    found = triangle_attention_(z, given)
    assert found[0, 1].isnan().all()
    assert found[0, :, 1].isnan().any()


@pytest.mark.gpu
@pytest.mark.parametrize("ending", [False, True], ids=["starting", "ending"])
@pytest.mark.parametrize(
    ("channels", "precision"), [(256, torch.bfloat16), (128, torch.float32)], ids=str
)
def test_thousands_of_tokens(channels, precision, ending):
    """Rows of thousands of tokens are right; a mask ends all rows of keys.

    With 256 channels, the pairs have more than 2**31 elements.
    """
    n, heads = 2901, channels // 32
    given = to(pair_weights(channels, heads, 32, precision), "cuda", precision)
    z = torch.randn(1, n, n, channels, device="cuda", dtype=precision)
    mask = torch.ones(1, n, n, device="cuda", dtype=torch.bool)
    mask[:, -100:] = mask[:, :, -100:] = False
    x = z.transpose(1, 2) if ending else z
    kept = mask.transpose(1, 2) if ending else mask
    few = torch.tensor([0, 1500, n - 101], device="cuda")
    rows = x[:, few].double()
    exact = to(given, "cuda", torch.float64)
    biases = torch.cat(
        [reference.pair_biases(part, given.norm, given.bias) for part in x.split(300, 1)], 2
    )
    tokens = TokenAttentionWeights(
        exact.norm, exact.query, exact.key, exact.value, exact.gate, exact.out
    )
    updates = [
        reference.token_attention_update(row, biases.double(), tokens, kept[:, few[k : k + 1]])
        for k, row in enumerate(rows.split(1, 1))
    ]
    expected = rows + torch.cat(updates, 1)
    triangle_attention_(z, given, mask, ending=ending)
    found = (z.transpose(1, 2) if ending else z)[:, few]
    assert_within(found.double().cpu(), expected.cpu(), BOUNDS[precision])


def test_strides_of_weights_do_not_matter(device):
    given = to(pair_weights(16, 2, 8, torch.float32), device, torch.float32)
    z = torch.randn(1, 5, 5, 16, device=device)
    assert torch.equal(triangle_attention_(z.clone(), spread(given)), triangle_attention_(z, given))


@pytest.mark.parametrize("channels", [16, 160])
def test_strides_of_the_weights_of_tokens_do_not_matter(channels, device):
    given = to(token_weights(channels, 2, 8, torch.float32), device, torch.float32)
    s, bias = torch.randn(1, 1, 5, channels, device=device), torch.randn(1, 2, 5, 5, device=device)
    found = token_attention_(s.clone(), bias, spread(given))
    # A library may add the products of weights with other strides in another order.
    assert_close(found, token_attention_(s, bias, given), rtol=1e-5, atol=1e-5)


def test_empty(device):
    given = to(pair_weights(16, 2, 8, torch.float32), device, torch.float32)
    assert not triangle_attention_(torch.empty(1, 0, 0, 16, device=device), given).numel()
    for channels in (16, 160):
        given = to(token_weights(channels, 2, 8, torch.float32), device, torch.float32)
        s, bias = torch.empty(1, 1, 0, channels), torch.empty(1, 2, 0, 0)
        assert not token_attention_(s.to(device), bias.to(device), given).numel()


def test_bad_arguments_are_refused(device):
    given = to(pair_weights(16, 2, 8, torch.float16), device, torch.float16)
    z = torch.ones(1, 5, 5, 16, device=device)
    with pytest.raises(InputError, match="z has the shape"):
        triangle_attention_(z[:, :4], given)
    with pytest.raises(InputError, match="must be contiguous"):
        triangle_attention_(z.transpose(1, 2), given)
    with pytest.raises(InputError, match="mask has the shape"):
        triangle_attention_(z, given, z[..., 0, 0])
    with pytest.raises(InputError, match="use 'key' or 'query'"):
        triangle_attention_(z, given, bias_of_ending="both")
    with pytest.raises(InputError, match="not divisible by 3 heads"):
        triangle_attention_(z, given._replace(bias=given.bias.repeat(2, 1)[:3]))
    with pytest.raises(InputError, match="gate has the shape"):
        triangle_attention_(z, given._replace(gate=given.bias))


@pytest.mark.parametrize("channels", [16, 160])
def test_maps_of_tokens_that_do_not_fit_together_are_refused(channels, device):
    """Wide tokens have one product for all maps, in which rows would be taken for those of others.

    Keys and values below have as many rows together as those that fit.
    """
    given = to(token_weights(channels, 2, 8, torch.float32), device, torch.float32)
    s, bias = torch.ones(1, 1, 5, channels, device=device), torch.ones(1, 2, 5, 5, device=device)
    key, value = given.key.repeat(2, 1)[:24], given.value[:8]
    for name, bad in {
        "key": given._replace(key=key, value=value),
        "value": given._replace(value=value, gate=key),
        "gate": given._replace(gate=given.gate[:8]),
        "out": given._replace(out=given.out[:, :8]),
        "query_bias": given._replace(query_bias=given.query_bias[:1]),
        "the weight of norm": given._replace(norm=(given.norm[0][:1], None, 1e-5)),
    }.items():
        with pytest.raises(InputError, match=f"{name} has the shape"):
            token_attention_(s.clone(), bias, bad)
