"""Radial bases and cutoffs against independent implementations with NumPy and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import spherical_jn

from mlff_triton.errors import InputError
from mlff_triton.model.config import TensorNetConfig
from mlff_triton.model.radial_basis import (
    BASES,
    cosine_cutoff,
    spherical_bessel,
    spherical_bessel_roots,
)
from mlff_triton.testing import assert_close

DISTANCES = torch.linspace(0.05, 4.95, 99, dtype=torch.float64)


def config(rbf_type: str, **changes) -> TensorNetConfig:
    return TensorNetConfig(
        (1,), rbf_type=rbf_type, **{"num_rbf": 6, "self_loops": False, **changes}
    )


def make(rbf_type: str, **changes) -> torch.nn.Module:
    return BASES[rbf_type](config(rbf_type, **changes))


def at(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def value_and_derivatives(function, x: float, order: int) -> list[torch.Tensor]:
    """Compute f, f', ... of a scalar or vector function of a distance."""
    distance = at(x).requires_grad_()
    chains = []
    for value in function(distance).flatten():
        chain = [value]
        for _ in range(order):
            chain += torch.autograd.grad(chain[-1], distance, create_graph=True)
        chains.append(torch.stack(chain).detach())
    return list(torch.stack(chains, dim=1).squeeze(1))


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 5.0), (0.0, 1.3), (1.0, 5.0)])
def test_cutoff_follows_its_formula(lower, upper):
    d = np.linspace(0.0, 6.0, 301)
    phase = 2 * (d - lower) / (upper - lower) + 1 if lower > 0 else d / upper
    inside = (d < upper) & ((d > lower) | (lower == 0))
    expected = np.where(inside, np.cos(np.pi * phase) / 2 + 0.5, 0)
    assert_close(cosine_cutoff(torch.from_numpy(d), lower, upper), expected, 0)


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 5.0), (1.0, 5.0)])
def test_cutoff_is_flat_at_its_ends(lower, upper):
    def cutoff(d):
        return cosine_cutoff(d, lower, upper)

    for end, inwards in ((upper, -1e-7), (lower, 1e-7)):
        value, slope = value_and_derivatives(cutoff, end + inwards, 1)
        level = 1.0 if end == 0 else 0.0
        assert value == pytest.approx(level, abs=1e-13)
        assert slope == pytest.approx(0.0, abs=1e-6)
    for outside in (upper, upper + 1e-9, upper + 3):
        assert [float(v) for v in value_and_derivatives(cutoff, outside, 1)] == [0.0, 0.0]


def test_cutoff_has_its_peak_between_its_ends():
    assert float(cosine_cutoff(at(3.0), 1.0, 5.0)) == pytest.approx(1.0)
    assert float(cosine_cutoff(at(2.5), 0.0, 5.0)) == pytest.approx(0.5)


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 5.0), (0.5, 4.5)])
def test_expnorm_follows_its_formula(lower, upper):
    basis = make("expnorm", cutoff_lower=lower, cutoff_upper=upper, num_rbf=8)
    d = DISTANCES.numpy()[:, None]
    start = math.exp(-(upper - lower))
    means = start + (1 - start) * np.arange(8) / 7
    beta = (2 / 8 * (1 - start)) ** -2
    alpha = 5 / (upper - lower)
    weight = np.where(d < upper, np.cos(np.pi * d / upper) / 2 + 0.5, 0)
    expected = weight * np.exp(-beta * (np.exp(alpha * (lower - d)) - means) ** 2)
    assert_close(basis(DISTANCES), expected, 0)


@pytest.mark.parametrize(("lower", "upper"), [(0.0, 5.0), (0.5, 4.5)])
def test_gaussians_follow_their_formula(lower, upper):
    basis = make("gauss", cutoff_lower=lower, cutoff_upper=upper, num_rbf=8)
    width = (upper - lower) / 7
    offsets = lower + width * np.arange(8)
    expected = np.exp(-((DISTANCES.numpy()[:, None] - offsets) ** 2) / (2 * width**2))
    assert_close(basis(DISTANCES), expected, 0)


def smooth_bessel(n_functions: int, cutoff: float):
    """Return the functions of Kocer et al. 2019, eqs. (28)-(31), as printed."""

    def f(n, r):
        scale = (-1) ** n * math.sqrt(2) * math.pi / cutoff**1.5
        scale *= (n + 1) * (n + 2) / math.sqrt((n + 1) ** 2 + (n + 2) ** 2)
        waves = [np.sinc(r * k / cutoff) for k in (n + 1, n + 2)]
        return scale * sum(waves)

    e = [n**2 * (n + 2) ** 2 / (4 * (n + 1) ** 4 + 1) for n in range(n_functions)]
    d = [1.0]
    for n in range(1, n_functions):
        d.append(1 - e[n] / d[n - 1])

    def g(n, r):
        if n == 0:
            return f(0, r)
        return (f(n, r) + math.sqrt(e[n] / d[n - 1]) * g(n - 1, r)) / math.sqrt(d[n])

    return [lambda r, n=n: g(n, r) for n in range(n_functions)]


def test_smooth_bessel_follows_its_formula():
    expected = np.stack([g(DISTANCES.numpy()) for g in smooth_bessel(6, 5.0)], axis=-1)
    assert_close(make("bessel-smooth")(DISTANCES), expected, 0)


def test_smooth_bessel_is_orthonormal():
    basis = make("bessel-smooth", cutoff_upper=4.0)
    nodes, weights = np.polynomial.legendre.leggauss(60)
    r = torch.from_numpy(2.0 * (nodes + 1))
    values = basis(r).numpy()
    overlap = (values * (2.0 * weights * r.numpy() ** 2)[:, None]).T @ values
    assert_close(overlap, np.eye(6), 0)


def test_smooth_bessel_vanishes_with_two_derivatives_at_the_cutoff():
    basis = make("bessel-smooth")
    inside = value_and_derivatives(basis, 2.5, 2)
    for derivative, typical in zip(value_and_derivatives(basis, 5.0, 2), inside, strict=True):
        assert_close(derivative, torch.zeros(6), 1, floor=float(typical.abs().max()))


@pytest.mark.parametrize("orders", [1, 2, 3])
def test_bessel_follows_its_formula(orders):
    cutoff, count = 5.0, 6 // orders
    basis = make("bessel", bessel_orders=orders, cutoff_upper=cutoff)
    d = DISTANCES[DISTANCES > 0.5].numpy()
    columns = []
    for order in range(orders):
        for root in scipy_roots(order, count):
            square = quad(
                lambda r, k=order, z=root: (spherical_jn(k, z * r / cutoff) * r) ** 2, 0, cutoff
            )
            columns.append(spherical_jn(order, root * d / cutoff) / math.sqrt(square[0]))
    assert_close(basis(torch.from_numpy(d)), np.stack(columns, axis=-1), 1)


def scipy_roots(order: int, count: int) -> list[float]:
    """Find the positive zeros of ``j_order``, bracketed on a fine grid."""
    grid = np.linspace(order + 1.0, order + 1.0 + 4 * (count + 1), 2000)
    values = spherical_jn(order, grid)
    brackets = np.flatnonzero(np.diff(np.sign(values)))[:count]
    return [
        brentq(lambda x: spherical_jn(order, x), grid[k], grid[k + 1], xtol=1e-14) for k in brackets
    ]


@pytest.mark.parametrize(("orders", "count"), [(1, 1), (1, 20), (4, 3), (6, 10)])
def test_bessel_roots(orders, count):
    roots = spherical_bessel_roots(orders, count)
    assert roots.shape == (orders, count)
    assert roots.dtype == torch.float64
    expected = [scipy_roots(order, count) for order in range(orders)]
    assert roots.numpy() == pytest.approx(np.array(expected), rel=1e-13)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 5])
def test_spherical_bessel(order):
    x = np.linspace(order + 0.5, 60, 500)
    expected = spherical_jn(order, x)
    assert spherical_bessel(order, torch.from_numpy(x)).numpy() == pytest.approx(
        expected, abs=1e-12
    )


def test_bessel_vanishes_at_the_cutoff_and_stays_there():
    basis = make("bessel", bessel_orders=2)
    scale = float(basis(DISTANCES).abs().max())
    assert_close(
        basis(torch.tensor([5.0, 5.1, 50.0])), torch.zeros(3, 6), 0, "float32", floor=scale
    )
    assert_close(basis(at(5.0)), torch.zeros(6), 0, floor=scale)


@pytest.mark.parametrize("rbf_type", BASES)
def test_derivatives(rbf_type):
    basis = make(rbf_type, bessel_orders=2 if rbf_type == "bessel" else 1)
    d = torch.tensor([0.7, 1.5, 3.1, 4.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(basis, d)
    assert torch.autograd.gradgradcheck(basis, d)


@pytest.mark.parametrize("rbf_type", ["expnorm", "gauss"])
def test_trainable_parameters_have_gradients(rbf_type):
    basis = make(rbf_type, trainable_rbf=True)
    parameters = tuple(basis.parameters())
    assert len(parameters) == 2

    def of_parameters(*values):
        names = [name for name, _ in basis.named_parameters()]
        return torch.func.functional_call(
            basis, dict(zip(names, values, strict=True)), DISTANCES[:5]
        )

    assert torch.autograd.gradcheck(of_parameters, parameters)
    assert not any(p.requires_grad for p in make(rbf_type).parameters())


@pytest.mark.parametrize("rbf_type", BASES)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3)])
def test_shapes_and_dtypes(rbf_type, shape):
    for dtype in (torch.float32, torch.float64):
        basis = make(rbf_type).to(dtype)
        values = basis(torch.full(shape, 1.5, dtype=dtype))
        assert values.shape == (*shape, 6)
        assert values.dtype == dtype


@pytest.mark.parametrize("rbf_type", BASES)
def test_single_precision_is_as_good_as_it_can_be(rbf_type):
    exact, single = make(rbf_type), make(rbf_type).to(torch.float32)
    d = DISTANCES[DISTANCES > 0.5].to(torch.float32)
    assert_close(single(d), exact(d.double()), 1, "float32")


@pytest.mark.parametrize("rbf_type", BASES)
def test_a_basis_that_self_loops_may_use_is_finite_at_distance_zero(rbf_type):
    try:
        basis = make(rbf_type, self_loops=True)
    except InputError:
        return
    d = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    values = basis(d)
    assert torch.isfinite(values).all()
    (slope,) = torch.autograd.grad(values.sum(), d)
    assert torch.isfinite(slope).all()


def test_waves_of_distance_zero_are_those_nearby():
    for rbf_type in ("expnorm", "gauss", "bessel-smooth"):
        basis = make(rbf_type)
        assert_close(basis(at(0.0)), basis(at(1e-9)), 1, "float32")
