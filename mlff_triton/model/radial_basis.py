"""Cutoffs, and radial bases, which expand a distance in ``num_rbf`` smooth functions.

``expnorm`` and ``gauss`` follow TorchMD-NET 3.1 (`models/utils.py`); the spherical Bessel bases
follow MatGL 4.1 (`layers/_basis.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mlff_triton.model.config import TensorNetConfig


def cosine_cutoff(distance: Tensor, lower: float, upper: float) -> Tensor:
    """Compute the cosine cutoff, which falls smoothly to zero at ``upper``.

    If ``lower > 0``, it also falls to zero at ``lower``.

    Parameters
    ----------
    distance : [...]
        Distances in Å.
    lower, upper : float
        Cutoff radii in Å.

    Returns
    -------
    [...]
        Weights between 0 and 1.
    """
    if lower > 0:
        phase = 2 * (distance - lower) / (upper - lower) + 1
        inside = (distance < upper) & (distance > lower)
    else:
        phase = distance / upper
        inside = distance < upper
    return 0.5 * (torch.cos(math.pi * phase) + 1) * inside


def polynomial_cutoff(x: Tensor) -> Tensor:
    """Switch from 1 at 0 to 0 at 1; the first two derivatives vanish at 1.

    ``1 - (p + 1) (p + 2) / 2 x^p + p (p + 2) x^(p + 1) - p (p + 1) / 2 x^(p + 2)`` with p = 6; J.
    Gasteiger, J. Groß, S. Günnemann, ICLR 2020, https://arxiv.org/abs/2003.03123, eq. 8.

    Parameters
    ----------
    x : [...]
        Distances relative to the cutoff, from 0 to 1.

    Returns
    -------
    [...]
        Weights between 0 and 1.
    """
    return 1 - x**6 * (28 - x * (48 - 21 * x))


class ExpNormalBasis(nn.Module):
    """Gaussians in ``exp(-alpha d)`` (PhysNet, https://doi.org/10.1021/acs.jctc.9b00181)."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.lower, self.upper = config.cutoff_lower, config.cutoff_upper
        start = math.exp(self.lower - self.upper)
        means = torch.linspace(start, 1, config.num_rbf, dtype=torch.float64)
        betas = torch.full_like(means, (2 / config.num_rbf * (1 - start)) ** -2)
        self.means = nn.Parameter(means, requires_grad=config.trainable_rbf)
        self.betas = nn.Parameter(betas, requires_grad=config.trainable_rbf)

    def forward(self, distance: Tensor) -> Tensor:
        """Evaluate the basis at distances [...] in Å: [..., num_rbf]."""
        d = distance[..., None]
        decay = torch.exp(5.0 / (self.upper - self.lower) * (self.lower - d))
        bumps = torch.exp(-self.betas * (decay - self.means) ** 2)
        return cosine_cutoff(d, 0.0, self.upper) * bumps


class GaussianBasis(nn.Module):
    """Gaussians centered on an even grid of distances."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        offset = torch.linspace(
            config.cutoff_lower, config.cutoff_upper, config.num_rbf, dtype=torch.float64
        )
        coeff = -0.5 / (offset[1] - offset[0]) ** 2
        self.offset = nn.Parameter(offset, requires_grad=config.trainable_rbf)
        self.coeff = nn.Parameter(coeff, requires_grad=config.trainable_rbf)

    def forward(self, distance: Tensor) -> Tensor:
        """Evaluate the basis at distances [...] in Å: [..., num_rbf]."""
        return torch.exp(self.coeff * (distance[..., None] - self.offset) ** 2)


class ExactConstants(nn.Module):
    """A basis without weights, whose constants stay in float64 when the model is cast."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ExactConstants:
        exact = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, value in exact.items():
            setattr(self, name, value.to(getattr(self, name).device))
        return self


class SmoothBesselBasis(ExactConstants):
    """Orthogonal combinations of ``j_0`` that vanish at the cutoff with two derivatives.

    Source: https://doi.org/10.1063/1.5126701, eqs. (28)-(31); MatGL with ``use_smooth``.
    """

    mixing: Tensor

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.cutoff = config.cutoff_upper
        n = torch.arange(config.num_rbf, dtype=torch.float64)
        ratio = n**2 * (n + 2) ** 2 / (4 * (n + 1) ** 4 + 1)
        scale = (n + 1) * (n + 2) / torch.sqrt((n + 1) ** 2 + (n + 2) ** 2)
        scale *= (-1) ** n * math.sqrt(2) * math.pi / self.cutoff**1.5
        mixing = torch.diag(scale)
        norm = torch.ones(config.num_rbf, dtype=torch.float64)
        for k in range(1, config.num_rbf):
            norm[k] = 1 - ratio[k] / norm[k - 1]
            previous = torch.sqrt(ratio[k] / norm[k - 1]) * mixing[k - 1]
            mixing[k] = (mixing[k] + previous) / torch.sqrt(norm[k])
        self.register_buffer("mixing", mixing, persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        """Evaluate the basis at distances [...] in Å: [..., num_rbf]."""
        n = torch.arange(1, self.mixing.shape[0] + 2, device=distance.device)
        waves = torch.sinc(distance[..., None] / self.cutoff * n)
        return (waves[..., :-1] + waves[..., 1:]) @ self.mixing.to(waves).T


class BesselBasis(ExactConstants):
    """Spherical Bessel functions ``j_l(z_ln d / cutoff)``, normalized, for ``l < bessel_orders``.

    Source: https://doi.org/10.48550/arXiv.2003.03123, eq. (6); MatGL without ``use_smooth``.
    """

    roots: Tensor
    norm: Tensor

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.cutoff, self.orders = config.cutoff_upper, config.bessel_orders
        roots = spherical_bessel_roots(self.orders, config.num_rbf // self.orders)
        peak = torch.stack([spherical_bessel(k + 1, roots[k]).abs() for k in range(self.orders)])
        self.register_buffer("roots", roots, persistent=False)
        self.register_buffer("norm", math.sqrt(2 / self.cutoff**3) / peak, persistent=False)

    def forward(self, distance: Tensor) -> Tensor:
        """Evaluate the basis at distances [...] in Å: [..., num_rbf]."""
        x = distance.clamp(max=self.cutoff)[..., None, None] / self.cutoff * self.roots.to(distance)
        waves = [spherical_bessel(k, x[..., k, :]) for k in range(self.orders)]
        return (torch.stack(waves, dim=-2) * self.norm.to(distance)).flatten(-2)


def spherical_bessel(order: int, x: Tensor) -> Tensor:
    """Compute ``j_order(x)`` by upward recurrence, for ``x`` not much smaller than ``order``."""
    lower, value = torch.cos(x) / x, torch.sin(x) / x
    for k in range(order):
        lower, value = value, (2 * k + 1) / x * value - lower
    return value


def spherical_bessel_roots(orders: int, count: int) -> Tensor:
    """Find the first positive zeros of ``j_0 .. j_(orders - 1)``, float64 [orders, count].

    The zeros of ``j_l`` bracket the zeros of ``j_(l+1)``, which bisection then finds.
    """
    zeros = math.pi * torch.arange(1, count + orders, dtype=torch.float64)
    rows = [zeros[:count]]
    for order in range(1, orders):
        low, high = zeros[:-1].clone(), zeros[1:].clone()
        sign = torch.sign(spherical_bessel(order, low))
        for _ in range(60):
            middle = (low + high) / 2
            same = torch.sign(spherical_bessel(order, middle)) == sign
            low, high = torch.where(same, middle, low), torch.where(same, high, middle)
        zeros = (low + high) / 2
        rows.append(zeros[:count])
    return torch.stack(rows)


BASES: dict[str, type[nn.Module]] = {
    "expnorm": ExpNormalBasis,
    "gauss": GaussianBasis,
    "bessel": BesselBasis,
    "bessel-smooth": SmoothBesselBasis,
}
