"""Averages of alignments weighted by pairs, compared with their reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs.pair_average import pair_average_
from mlff_triton.kernels.pairs.reference import pair_average as reference
from mlff_triton.kernels.pairs.types import AverageWeights
from mlff_triton.testing import assert_within
from tests.kernels.pairs.cases import (
    BOUNDS,
    assert_no_worse,
    dtypes,
    norm,
    pooled,
    random,
    random_map,
    spread,
    to,
)


def weights(
    channels: int, pairs: int, heads: int, dim: int, precision: torch.dtype
) -> AverageWeights:
    """Return random weights in float64, none of them zero."""
    width = heads * dim
    return AverageWeights(
        norm(channels, precision),
        norm(pairs, precision),
        random_map(width, channels, precision),
        random_map(width, channels, precision),
        random_map(heads, pairs, precision),
        random_map(channels, width, precision),
    )


@dtypes
@pytest.mark.parametrize(
    "size",
    [(1, 1, 1, 16, 16, 1, 16), (2, 3, 9, 24, 32, 2, 8), (1, 11, 17, 64, 128, 8, 32)],
    ids=str,
)
def test_pair_average(size, precision, device):
    """The update, which is the result less the alignment, is as exact as that of PyTorch."""
    batch, depth, n, channels, pairs, heads, dim = size

    def compare():
        given = weights(channels, pairs, heads, dim, precision)
        msa = random(batch, depth, n, channels, dtype=precision)
        z, mask = random(batch, n, n, pairs, dtype=precision), torch.ones(batch, n, n)
        mask[..., n - n // 3 :] = 0
        update = reference.pair_average_update(msa, z, given, mask)
        own = reference.pair_average_update(
            *(to(x, device, precision) for x in (msa, z, given, mask))
        )
        found = msa.to(device, torch.float32)
        result = pair_average_(
            found, z.to(device, precision), to(given, device, precision), mask.to(device)
        )
        assert result is found
        assert_within(found.cpu().double() - msa, update, BOUNDS[precision])
        return found, msa + update, msa.float() + own.cpu(), update

    found, exact, own, update = pooled(compare, batch * depth * n)
    assert_no_worse(found, exact, own, precision, scale=update)


def test_tokens_without_others_stay_finite(device):
    given, mask = weights(16, 16, 2, 8, torch.float32), torch.ones(1, 5, 5)
    mask[0, 2] = 0
    msa, z = torch.randn(1, 3, 5, 16).double(), torch.randn(1, 5, 5, 16).double()
    exact = reference.pair_average_(msa.clone(), z, given, mask)
    found = pair_average_(
        *(to(x, device, torch.float32) for x in (msa, z, given)), mask.bool().to(device)
    )
    assert_within(found.cpu(), exact, 1e-6)


def test_pairs_that_are_not_numbers_are_seen(device):
    given = to(weights(16, 16, 1, 16, torch.float32), device, torch.float32)
    msa, z = torch.randn(1, 2, 5, 16, device=device), torch.randn(1, 5, 5, 16, device=device)
    z[0, 1, 2, 3] = torch.nan
    found = pair_average_(msa, z, given).isnan()
    assert found[0, :, 1].all()
    assert found.sum() == 2 * 16


def test_residual_streams_in_half_precision(device):
    """Alignments in half precision are rounded once, after the addition."""
    precision = torch.bfloat16
    given = weights(32, 16, 2, 16, precision)
    msa, z = random(1, 4, 9, 32, dtype=precision), random(1, 9, 9, 16, dtype=precision)
    exact = reference.pair_average_(msa.clone(), z, given)
    found = pair_average_(*(to(x, device, precision) for x in (msa, z, given)))
    assert found.dtype is precision
    assert_within(found.cpu(), exact, BOUNDS[precision])


def test_strides_of_weights_do_not_matter(device):
    given = to(weights(16, 16, 2, 8, torch.float32), device, torch.float32)
    msa, z = torch.randn(1, 3, 5, 16, device=device), torch.randn(1, 5, 5, 16, device=device)
    expected = pair_average_(msa.clone(), z, given)
    assert torch.equal(pair_average_(msa, z, spread(given)), expected)


def test_empty(device):
    given = to(weights(16, 16, 2, 8, torch.float32), device, torch.float32)
    msa, z = torch.empty(1, 0, 5, 16, device=device), torch.ones(1, 5, 5, 16, device=device)
    assert not pair_average_(msa, z, given).numel()


def test_bad_arguments_are_refused(device):
    given = to(weights(16, 16, 2, 8, torch.float16), device, torch.float16)
    msa, z = torch.ones(1, 3, 5, 16, device=device), torch.ones(1, 5, 5, 16, device=device)
    with pytest.raises(InputError, match="z has the shape"):
        pair_average_(msa, z[:, :4], given)
    with pytest.raises(InputError, match="must be contiguous"):
        pair_average_(msa.transpose(1, 2), torch.ones(1, 3, 3, 16, device=device), given)
    with pytest.raises(InputError, match="mask has the shape"):
        pair_average_(msa, z, given, z[:, :4, :, 0])
    with pytest.raises(InputError, match="not divisible by 3 heads"):
        pair_average_(msa, z, given._replace(bias=given.bias.repeat(2, 1)[:3]))
