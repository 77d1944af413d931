"""Radial tables compared with the networks that they tabulate."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from mlff_triton.engine.radial_tables import (
    CLOSE,
    CLOSE_TOLERANCE,
    TOLERANCES,
    RadialTables,
    tabulate,
)
from mlff_triton.errors import UnsupportedModelError
from mlff_triton.kernels.common.reference.radial_table import look_up, look_up_slope
from mlff_triton.model.config import TensorNetConfig
from mlff_triton.model.radial_basis import cosine_cutoff
from mlff_triton.model.tensornet import TensorNet
from mlff_triton.testing import assert_close, assert_within

# PyTorch's forward differentiation compiles in a way that PyTorch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")

CHANNELS = 8
CONFIG = TensorNetConfig(
    elements=(1, 6), hidden_channels=CHANNELS, num_rbf=6, cutoff_upper=4.0, num_layers=2
)
VARIANTS = {
    "expnorm": {},
    "expnorm, no self-loops": {"self_loops": False},
    "expnorm, lower cutoff": {"cutoff_lower": 0.6, "activation": "ssp"},
    "gauss": {"rbf_type": "gauss", "num_layers": 1, "activation": "tanh"},
    "gauss, lower cutoff": {"rbf_type": "gauss", "cutoff_lower": 0.6, "activation": "sigmoid"},
    "bessel": {"rbf_type": "bessel", "self_loops": False},
    "bessel, two orders": {"rbf_type": "bessel", "self_loops": False, "bessel_orders": 2},
    "bessel-smooth": {"rbf_type": "bessel-smooth", "activation": "mish", "num_layers": 3},
}
LOOSE = 1e-5, 1e-4
SLACK = 1.5  # errors are measured at three points per interval, and may be larger elsewhere


def model_of(variant: str) -> TensorNet:
    torch.manual_seed(1)
    return TensorNet(replace(CONFIG, **VARIANTS[variant])).double().requires_grad_(False)


@pytest.fixture(scope="module", params=VARIANTS)
def tabulated(request) -> tuple[TensorNet, RadialTables]:
    model = model_of(request.param)
    return model, tabulate(model, TOLERANCES[torch.float32])


def exact_factors(model: TensorNet, distance: Tensor) -> list[Tensor]:
    """Return factors [3, n, F] of the embedding and of each layer."""
    config = model.config
    weight = cosine_cutoff(distance, config.cutoff_lower, config.cutoff_upper)[:, None]
    basis = model.basis(distance)
    factors = [model.embedding.radial(basis) * weight]
    for layer in model.layers:
        hidden = basis
        for linear in layer.radial:
            hidden = layer.activation(linear(hidden))
        factors.append(hidden * weight)
    return [f.unflatten(1, (3, -1)).transpose(0, 1) for f in factors]


def exact_slopes(model: TensorNet, distance: Tensor) -> list[Tensor]:
    ones = torch.ones_like(distance)
    return torch.func.jvp(lambda d: exact_factors(model, d), (distance,), (ones,))[1]


def tables_of(tables: RadialTables) -> list[Tensor]:
    return [tables.embedding, *tables.layers]


def random_distances(low: float, high: float, n: int = 3000) -> Tensor:
    return low + (high - low) * torch.rand(n, dtype=torch.float64)


def check_errors(
    model: TensorNet, tables: RadialTables, tolerances: tuple[float, float], dtype=torch.float64
) -> None:
    """Check values and slopes at random distances beyond 0.5 Å, relative to the largest ones."""
    d = random_distances(CLOSE, model.config.cutoff_upper)
    interval, fraction, width = tables.knots.locate(d)
    where = interval, fraction.to(dtype), width.to(dtype)
    exact = exact_factors(model, d), exact_slopes(model, d)
    for table, values, slopes in zip(tables_of(tables), *exact, strict=True):
        assert_within(look_up(table.to(dtype), *where), values, SLACK * tolerances[0])
        assert_within(look_up_slope(table.to(dtype), *where), slopes, SLACK * tolerances[1])


def test_errors_are_within_the_tolerances(tabulated):
    model, tables = tabulated
    tolerances = TOLERANCES[torch.float32]
    assert tables.errors[0] <= tolerances[0]
    assert tables.errors[1] <= tolerances[1]
    check_errors(model, tables, tolerances)


def test_close_atoms_have_looser_tolerances(tabulated):
    model, tables = tabulated
    lowest = max(float(tables.knots.positions[0]), 0.01)
    far = random_distances(CLOSE, model.config.cutoff_upper)
    near = random_distances(lowest, max(lowest, CLOSE))
    where = tables.knots.locate(near)
    exact = exact_factors(model, near), exact_factors(model, far)
    for table, values, others in zip(tables_of(tables), *exact, strict=True):
        error = (look_up(table, *where) - values).abs().max()
        assert error <= SLACK * CLOSE_TOLERANCE * TOLERANCES[torch.float32][0] * others.abs().max()


def test_float32_tables_round_no_worse(tabulated):
    model, tables = tabulated
    check_errors(model, tables.to(torch.device("cpu"), torch.float32), (2e-7, 5e-7), torch.float32)


@pytest.mark.parametrize("variant", ["expnorm", "gauss, lower cutoff", "bessel-smooth"])
def test_float64_tables(variant):
    model = model_of(variant)
    tables = tabulate(model, TOLERANCES[torch.float64])
    check_errors(model, tables, TOLERANCES[torch.float64])


def test_loose_tolerances_make_small_tables(tabulated):
    model, tables = tabulated
    small = tabulate(model, LOOSE)
    assert len(small.knots.positions) < len(tables.knots.positions) / 2
    check_errors(model, small, LOOSE)


def test_knots_are_no_denser_than_needed(tabulated):
    """Most intervals beyond 0.5 Å use up half of the allowed error of value or slope."""
    model, tables = tabulated
    positions = tables.knots.positions
    beyond = positions[:-1] > CLOSE
    start, width = positions[:-1][beyond], positions.diff()[beyond]
    errors = torch.zeros(len(start), 2)
    for fraction in (0.21, 0.5, 0.79):  # where errors of slope and value peak
        d = start + fraction * width
        where = tables.knots.locate(d)
        exact = exact_factors(model, d), exact_slopes(model, d)
        for table, values, slopes in zip(tables_of(tables), *exact, strict=True):
            for k, (function, truth) in enumerate(((look_up, values), (look_up_slope, slopes))):
                error = (function(table, *where) - truth).abs().amax((0, 2)) / truth.abs().max()
                errors[:, k] = torch.maximum(errors[:, k], error)
    share = errors / torch.tensor(TOLERANCES[torch.float32])
    assert share.amax(1).median() > 0.5


def test_knots_ascend_to_the_cutoff(tabulated):
    model, tables = tabulated
    positions = tables.knots.positions
    assert positions.dtype == torch.float64
    assert (positions.diff() > 0).all()
    assert_close(positions[-1], model.config.cutoff_upper, 0)
    if model.config.rbf_type != "bessel":
        assert_close(positions[0], model.config.cutoff_lower, 0, floor=1.0)
    for table in tables_of(tables):
        assert table.shape == (len(positions), 3, 3, CHANNELS)


def test_the_intervals_are_the_knots(tabulated):
    _, tables = tabulated
    positions, intervals = tables.knots
    assert torch.equal(intervals.unique(), torch.arange(len(positions) - 1).int())
    middle = (positions[1:] + positions[:-1]) / 2
    for fraction, distance in (
        (0.5, middle),
        (0.999, positions[1:] * 0.999 + positions[:-1] / 1e3),
    ):
        interval, found, width = tables.knots.locate(distance)
        assert torch.equal(interval, torch.arange(len(middle)))
        assert_close(found, torch.full_like(found, fraction), 1)
        assert torch.equal(width, positions.diff())
    interval, found, width = tables.knots.locate(positions)  # either of two intervals is right
    assert_close(positions[interval] + found * width, positions, 0)


def test_distances_outside_count_as_the_ends(tabulated):
    _, tables = tabulated
    last = len(tables.knots.positions) - 2
    outside = torch.stack([tables.knots.positions[0] - 0.1, tables.knots.positions[-1] + 0.1])
    interval, fraction, _ = tables.knots.locate(outside)
    assert interval.tolist() == [0, last]
    assert fraction.tolist() == [0, 1]


def test_values_and_slopes_are_exact_at_the_knots(tabulated):
    model, tables = tabulated
    positions = tables.knots.positions[:-1]
    where = torch.arange(len(positions)), torch.zeros_like(positions), tables.knots.positions.diff()
    exact = exact_factors(model, positions), exact_slopes(model, positions)
    for table, values, slopes in zip(tables_of(tables), *exact, strict=True):
        assert_close(look_up(table, *where), values, 0)
        assert_close(look_up_slope(table, *where), slopes, 1)


def test_slopes_are_the_derivatives_of_values(tabulated):
    """So energy is conserved: forces come from slopes, energies from values."""
    _, tables = tabulated
    d = random_distances(float(tables.knots.positions[0]), 4.0, 200)
    interval, fraction, width = tables.knots.locate(d)
    for table in tables_of(tables):
        slopes = torch.func.jvp(
            lambda t, table=table: look_up(table, interval, t, width), (fraction,), (1 / width,)
        )[1]
        assert_close(look_up_slope(table, interval, fraction, width), slopes, 1)


def test_values_and_slopes_are_continuous(tabulated):
    _, tables = tabulated
    width = tables.knots.positions.diff()
    interval = torch.arange(len(width))
    zero, one = torch.zeros_like(width), torch.ones_like(width)
    for table in tables_of(tables):
        for function in (look_up, look_up_slope):
            left, right = (function(table, interval, t, width) for t in (one, zero))
            assert_close(left[:, :-1], right[:, 1:], 0)
        assert not left[:, -1].any()  # the last slope; all values are zero at the cutoff
        assert not look_up(table, interval, one, width)[:, -1].abs().gt(1e-12).any()


def test_factors_of_atoms_themselves(tabulated):
    model, tables = tabulated
    if model.config.self_loops:
        embedding, *layers = exact_factors(model, torch.zeros(1, dtype=torch.float64))
        embedding, layers = embedding[0, 0], [layer[:, 0] for layer in layers]
    else:
        embedding = torch.zeros(CHANNELS)
        layers = [torch.zeros(3, CHANNELS)] * len(model.layers)
    assert_close(tables.embedding_self, embedding, 0)
    for own, exact in zip(tables.layer_self, layers, strict=True):
        assert_close(own, exact, 0)


def test_a_lower_cutoff_leaves_zeros_below():
    tables = tabulate(model_of("gauss, lower cutoff"), LOOSE)
    where = tables.knots.locate(random_distances(0.0, 0.6, 20))
    for table in tables_of(tables):
        assert look_up(table, *where).abs().max() < 1e-12
        assert look_up_slope(table, *where).abs().max() < 1e-12


def test_other_precisions(tabulated):
    _, tables = tabulated
    single = tables.to(torch.device("cpu"), torch.float32)
    assert single.knots.positions.dtype == torch.float64
    tensors = [*tables_of(single), single.embedding_self, *single.layer_self]
    assert {t.dtype for t in tensors} == {torch.float32}
    assert single.errors == tables.errors


class Kinked(nn.Module):
    """A basis with a kink, which no spline interpolates."""

    def forward(self, distance: Tensor) -> Tensor:
        return (distance[:, None] - 1.2345678).abs() * torch.ones(CONFIG.num_rbf).to(distance)


def test_networks_that_cannot_be_tabulated_are_refused():
    model = model_of("expnorm")
    model.basis = Kinked()
    message = r"change too fast to be tabulated near 1\.23 Å: use backend='exact'"
    with pytest.raises(UnsupportedModelError, match=message):
        tabulate(model, TOLERANCES[torch.float32])
