"""Values and slopes of radial networks compared with PyTorch's forward differentiation."""

from __future__ import annotations

import pytest
import torch

from mlff_triton.engine import radial_networks
from mlff_triton.engine.radial_networks import evaluate, radial_functions
from mlff_triton.testing import assert_close
from tests.engine.test_radial_tables import (
    CHANNELS,
    VARIANTS,
    exact_factors,
    exact_slopes,
    model_of,
)


@pytest.fixture(params=VARIANTS)
def model(request):
    return model_of(request.param)


@pytest.fixture
def distance(model):
    lowest = 0.25 if model.config.rbf_type == "bessel" else 0.0
    cutoff = model.config.cutoff_upper
    return torch.cat([torch.tensor([lowest, cutoff]), torch.linspace(lowest, 4.5, 97)]).double()


def test_values_and_slopes_are_exact(model, distance):
    rows = evaluate(model, distance)
    assert rows.shape == (1 + len(model.layers), len(distance), 2, 3, CHANNELS)
    exact = exact_factors(model, distance), exact_slopes(model, distance)
    for row, values, slopes in zip(rows, *exact, strict=True):
        assert_close(row[:, 0].transpose(0, 1), values, 0)
        assert_close(row[:, 1].transpose(0, 1), slopes, 1)


def test_functions_return_the_values(model, distance):
    exact = exact_factors(model, distance)
    for function, values in zip(radial_functions(model), exact, strict=True):
        assert_close(function(distance).unflatten(1, (3, -1)).transpose(0, 1), values, 0)


def test_chunks_change_nothing(model, distance, monkeypatch):
    whole = evaluate(model, distance)
    monkeypatch.setattr(radial_networks, "CHUNK", 7)
    assert_close(evaluate(model, distance), whole, 0)


def test_weights_may_require_gradients(model, distance):
    fixed = evaluate(model, distance)
    rows = evaluate(model.requires_grad_(True), distance)
    assert not rows.requires_grad
    assert torch.equal(rows, fixed)
