"""SwiGLU transitions, compared with their reference in float64."""

from __future__ import annotations

import math

import pytest
import torch

from mlff_triton.errors import InputError
from mlff_triton.kernels.pairs import wide_layers
from mlff_triton.kernels.pairs.reference import transition as reference
from mlff_triton.kernels.pairs.transition import transition_
from mlff_triton.kernels.pairs.types import TransitionWeights
from mlff_triton.testing import assert_within
from tests.kernels.pairs.cases import (
    BOUNDS,
    assert_no_worse,
    dtypes,
    norm,
    pooled,
    random,
    spread,
    to,
)


def weights(
    channels: int, hidden: int, precision: torch.dtype, *, bias: bool = True
) -> TransitionWeights:
    """Return random weights in float64, none of them zero."""
    shapes = (hidden, channels), (hidden, channels), (channels, hidden)
    maps = (random(*shape, dtype=precision) * shape[1] ** -0.5 for shape in shapes)
    maps = (x.to(precision).double() for x in maps)
    return TransitionWeights(norm(channels, precision, bias), *maps)


@dtypes
@pytest.mark.parametrize(
    "size",
    [
        *((1, 1, 1, 16, 64), (1, 9, 9, 24, 40), (1, 10, 10, 128, 512), (1, 17, 136, 544)),
        pytest.param((1, 17, 384, 1536), marks=pytest.mark.gpu),
    ],
    ids=str,
)
def test_transition(size, precision, device):
    """The update, which is the result less the rows, is at least as exact as that of PyTorch."""
    *shape, channels, hidden = size

    def compare():
        given, x = weights(channels, hidden, precision), random(*shape, channels, dtype=precision)
        update = reference.transition_update(x, given)
        rounded = (to(each, device, precision) for each in (x, given))
        own = x.float() + reference.transition_update(*rounded).cpu()
        found = x.to(device, torch.float32)
        assert transition_(found, to(given, device, precision)) is found
        assert_within(found.cpu().double() - x, update, BOUNDS[precision])
        return found, x + update, own, update

    found, exact, own, update = pooled(compare, math.prod(shape))
    assert_no_worse(found, exact, own, precision, scale=update)


@dtypes
@pytest.mark.parametrize(("channels", "hidden"), [(16, 1), (24, 20), (130, 3), (16, 70)])
def test_hidden_channels_may_be_any_number(channels, hidden, precision, device):
    given, x = weights(channels, hidden, precision), random(5, channels, dtype=precision)
    update = reference.transition_update(x, given)
    found = transition_(x.to(device, torch.float32), to(given, device, precision))
    assert_within(found.cpu().double() - x, update, BOUNDS[precision])


@dtypes
def test_the_hidden_layer_of_many_wide_rows_stays_on_chip(precision, device, monkeypatch):
    monkeypatch.setattr(wide_layers, "_MOST_ROWS", 0)
    given, x = weights(256, 512, precision), random(19, 256, dtype=precision)
    update = reference.transition_update(x, given)
    found = transition_(x.to(device, torch.float32), to(given, device, precision))
    assert_within(found.cpu().double() - x, update, BOUNDS[precision])


@pytest.mark.parametrize("n_rows", [1, 17, 100])
def test_residual_streams_in_half_precision(n_rows, device):
    """Rows in half precision are rounded once, after the addition."""
    precision = torch.bfloat16
    given, x = weights(32, 128, precision, bias=False), random(n_rows, 32, dtype=precision)
    exact = reference.transition_(x.clone(), given)
    found = transition_(x.to(device, precision), to(given, device, precision))
    assert found.dtype is precision
    assert_within(found.cpu(), exact, BOUNDS[precision])


def test_rows_that_are_not_numbers_are_seen(device):
    x = torch.randn(5, 16, device=device)
    x[1, 2] = torch.nan
    found = transition_(x, to(weights(16, 64, torch.float32), device, torch.float32)).isnan()
    assert found[1].all()
    assert found.sum() == 16


def test_large_gates_do_not_overflow(device):
    given = weights(16, 64, torch.float32)
    given = given._replace(gate=1e4 * given.gate)
    x = torch.randn(5, 16).double()
    exact = reference.transition_(x.clone(), given)
    found = transition_(x.to(device, torch.float32), to(given, device, torch.float32))
    assert_within(found.cpu(), exact, 1e-5)


def test_hidden_values_beyond_float16(device):
    """Hidden values of 1e8 are as exact as others."""
    given, x = weights(64, 128, torch.float32), torch.randn(9, 64)
    given = given._replace(gate=1e4 * given.gate, up=1e4 * given.up)
    given = to(given, "cpu", torch.float32)
    update = reference.transition_update(x.double(), to(given, "cpu", torch.float64))
    found = transition_(x.clone().to(device), to(given, device, torch.float32))
    assert_within(found.cpu().double() - x, update, BOUNDS[torch.float32])


@pytest.mark.parametrize("channels", [16, 160])
def test_strides_of_weights_do_not_matter(channels, device):
    given = to(weights(channels, 64, torch.float32), device, torch.float32)
    x = torch.randn(5, channels, device=device)
    assert torch.equal(transition_(x.clone(), spread(given)), transition_(x.clone(), given))


def test_empty(device):
    given = to(weights(16, 64, torch.float32), device, torch.float32)
    assert not transition_(torch.empty(0, 16, device=device), given).numel()


def test_bad_arguments_are_refused(device):
    given = to(weights(16, 64, torch.float16), device, torch.float16)
    x = torch.ones(5, 16, device=device)
    with pytest.raises(InputError, match="600 channels: use at most 512"):
        transition_(torch.ones(5, 600, device=device), given)
    with pytest.raises(InputError, match="must be contiguous"):
        transition_(torch.ones(16, 5, device=device).T, given)
    with pytest.raises(InputError, match="the weights are"):
        transition_(x.bfloat16(), given)
    with pytest.raises(InputError, match="down has the shape"):
        transition_(x, given._replace(down=given.up))
    with pytest.raises(InputError, match="the same for all"):
        transition_(x, given._replace(up=given.up.float()))
