"""Outer product means, compared with their reference in float64."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs import outer_product_mean as module
from mlff_triton.kernels.pairs.outer_product_mean import outer_product_mean_
from mlff_triton.kernels.pairs.reference import outer_product_mean as reference
from mlff_triton.kernels.pairs.types import OuterProductWeights
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
    channels: int, factors: int, pairs: int, precision: torch.dtype, *, bias: bool = True
) -> OuterProductWeights:
    """Return random weights in float64, none of them zero."""
    return OuterProductWeights(
        norm(channels, precision),
        random_map(factors, channels, precision),
        random_map(factors, channels, precision),
        random_map(pairs, factors**2, precision),
        random(pairs, dtype=precision) if bias else None,
    )


@dtypes
@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize(
    "size",
    [(1, 1, 1, 16, 8, 16), (2, 5, 9, 24, 16, 40), (1, 13, 17, 64, 32, 128)],
    ids=str,
)
def test_outer_product_mean(size, eps, precision, device):
    """The update, which is the result less the pairs, is at least as exact as that of PyTorch."""
    batch, depth, n, channels, factors, pairs = size

    def compare():
        given = weights(channels, factors, pairs, precision)
        z, msa = (
            random(batch, *shape, dtype=precision)
            for shape in ((n, n, pairs), (depth, n, channels))
        )
        mask = (torch.rand(batch, depth, n) < 0.8).double()
        mask[..., :1] = 1
        update = reference.outer_product_update(msa, given, mask, eps=eps)
        rounded = (to(x, device, precision) for x in (msa, given, mask))
        own = reference.outer_product_update(*rounded, eps=eps)
        found = z.to(device, torch.float32)
        result = outer_product_mean_(
            found,
            msa.to(device, precision),
            to(given, device, precision),
            to(mask, device, torch.float32),
            eps=eps,
        )
        assert result is found
        assert_within(found.cpu().double() - z, update, BOUNDS[precision])
        return found, z + update, z.float() + own.cpu(), update

    found, exact, own, update = pooled(compare, batch * n * n)
    assert_no_worse(found, exact, own, precision, scale=update)


def test_rows_at_a_time_do_not_matter(device, monkeypatch):
    """Few rows of outer products fit into memory at once."""
    given = to(weights(16, 8, 16, torch.float32, bias=False), device, torch.float32)
    z, msa = torch.randn(2, 9, 9, 16, device=device), torch.randn(2, 5, 9, 16, device=device)
    expected = outer_product_mean_(z.clone(), msa, given)
    monkeypatch.setattr(module, "_BYTES", 2 * 9 * 8 * 8 * 4 * 2)  # two rows
    assert_within(outer_product_mean_(z, msa, given).cpu(), expected.cpu(), 1e-6)


def test_pairs_without_sequences(device):
    """Without sequences, the update is the bias."""
    given = weights(16, 8, 16, torch.float32)
    z, msa = torch.randn(1, 5, 5, 16).double(), torch.randn(1, 3, 5, 16).double()
    for rows, mask in ((msa, torch.zeros(1, 3, 5)), (msa[:, :0], None)):
        exact = reference.outer_product_mean_(z.clone(), rows, given, mask)
        found = outer_product_mean_(
            *(to(x, device, torch.float32) for x in (z, rows, given)),
            None if mask is None else mask.to(device),
        )
        assert_within(found.cpu(), exact, 1e-6)


def test_rows_that_are_not_numbers_are_seen(device):
    given = to(weights(16, 8, 16, torch.float32), device, torch.float32)
    z, msa = torch.randn(1, 5, 5, 16, device=device), torch.randn(1, 3, 5, 16, device=device)
    msa[0, 1, 2, 3] = torch.nan
    found = outer_product_mean_(z, msa, given).isnan()
    assert found[0, 2].all()
    assert found[0, :, 2].all()
    assert found.sum() == 9 * 16


def test_residual_streams_in_half_precision(device):
    """Pairs in half precision are rounded once, after the addition."""
    precision = torch.bfloat16
    given = weights(16, 8, 32, precision)
    z, msa = random(1, 9, 9, 32, dtype=precision), random(1, 4, 9, 16, dtype=precision)
    exact = reference.outer_product_mean_(z.clone(), msa, given)
    found = outer_product_mean_(*(to(x, device, precision) for x in (z, msa, given)))
    assert found.dtype is precision
    assert_within(found.cpu(), exact, BOUNDS[precision])


def test_strides_of_weights_do_not_matter(device):
    given = to(weights(16, 8, 16, torch.float32), device, torch.float32)
    z, msa = torch.randn(1, 5, 5, 16, device=device), torch.randn(1, 3, 5, 16, device=device)
    expected = outer_product_mean_(z.clone(), msa, given)
    assert torch.equal(outer_product_mean_(z, msa, spread(given)), expected)


def test_empty(device):
    given = to(weights(16, 8, 16, torch.float32), device, torch.float32)
    msa = torch.empty(1, 3, 0, 16, device=device)
    assert not outer_product_mean_(torch.empty(1, 0, 0, 16, device=device), msa, given).numel()


def test_bad_arguments_are_refused(device):
    given = to(weights(16, 8, 16, torch.float16), device, torch.float16)
    z, msa = torch.ones(1, 5, 5, 16, device=device), torch.ones(1, 3, 5, 16, device=device)
    with pytest.raises(InputError, match="z has the shape"):
        outer_product_mean_(z[:, :4], msa, given)
    with pytest.raises(InputError, match="must be contiguous"):
        outer_product_mean_(z.transpose(1, 2), msa, given)
    with pytest.raises(InputError, match="mask has the shape"):
        outer_product_mean_(z, msa, given, z[..., 0])
    other = torch.ones(12, 16, device=device).half()
    with pytest.raises(InputError, match="12 channels: use 8, 16"):
        outer_product_mean_(z, msa, given._replace(left=other, right=other))
