"""Radial networks as tables: exact at the knots, cubic in between, to an error that is measured.

In TensorNet, the networks of edges depend on the distance alone. They return F factors for each of
the three parts, in the embedding and in every layer. Each factor becomes a cubic Hermite spline,
which interpolates values and slopes at its knots. The energy thus has a continuous gradient, and
forces are the exact derivatives of the interpolated energy. A row of a table holds the value and
the slope at a knot, and the secant to the next knot; see
`mlff_triton.kernels.common.reference.radial_table`.

All tables of a model share their knots, which are as dense as the functions and the requested error
require. With the usual bases, only about a hundred knots lie beyond 2.5 Å, where nearly all
neighbors are, and these rows stay in a GPU's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlff_triton.errors import UnsupportedModelError
from mlff_triton.kernels.common.reference.radial_table import look_up, look_up_slope
from mlff_triton.kernels.types.edges import Knots
from mlff_triton.model.config import TensorNetConfig
from mlff_triton.model.radial_basis import cosine_cutoff
from mlff_triton.model.tensornet import TensorNet

TOLERANCES = {
    # Largest errors of values and slopes, relative to the largest value and slope. Those occur at
    # short distances and are ten times the values and slopes of most neighbors, so the tolerance of
    # float32 is below its precision. Slopes of float64 leave room for forces that nearly cancel.
    torch.float32: (1e-8, 3.5e-8),
    torch.float64: (2e-12, 2.5e-11),
}
CLOSE = 0.5  # Å; no two nuclei come closer, and the bases are steepest there
CLOSE_TOLERANCE = 1000.0  # factor of the tolerances below this distance
COARSEST = 16  # intervals before the first halving
HALVINGS = 16  # largest number of times that an interval is halved
SCALE_SAMPLES = 8  # distances per coarsest interval, to find the largest value and slope
EXPONENTS = (1 / 4, 1 / 3)  # widths grow with these powers of the errors of values and slopes
MARGINS = (1.02, 1.1, 1.2, 1.4)  # densities of knots that are tried, relative to the estimate
SAMPLES = (0.21, 0.5, 0.79)  # fractions of an interval at which errors of slope and value peak
ROUNDING = 4e-15  # error of values in float64, which a secant divides by the width of an interval
CHUNK = 4096  # distances per evaluation

RadialFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class RadialTables:
    """All radial networks of a model.

    Attributes
    ----------
    knots : Knots
        Distances of the K + 1 knots.
    embedding : [K + 1, 3, 3, F]
        Value, slope and secant at each knot of the three factors of the embedding, cutoff included.
    layers : list of [K + 1, 3, 3, F]
        The same for the factors of each layer.
    embedding_self : [F]
        First factor of the embedding at distance 0; zeros for models without self-loops.
    layer_self : list of [3, F]
        Factors of each layer at distance 0; zeros for models without self-loops.
    errors : (float, float)
        Largest errors of values and slopes found between knots beyond 0.5 Å, relative to the
        largest value and slope.
    """

    knots: Knots
    embedding: Tensor
    layers: list[Tensor]
    embedding_self: Tensor
    layer_self: list[Tensor]
    errors: tuple[float, float]

    def to(self, device: torch.device, dtype: torch.dtype) -> RadialTables:
        """Return these tables on a device in another precision, with knots in float64."""
        return RadialTables(
            Knots(*(t.to(device) for t in self.knots)),
            self.embedding.to(device, dtype),
            [t.to(device, dtype) for t in self.layers],
            self.embedding_self.to(device, dtype),
            [t.to(device, dtype) for t in self.layer_self],
            self.errors,
        )


def radial_functions(model: TensorNet) -> list[RadialFunction]:
    """Return functions of distances [n] to factors [n, 3 F], for the embedding and each layer."""

    def function(networks: Iterable[torch.nn.Module], activated: bool) -> RadialFunction:
        def evaluate(distance: Tensor) -> Tensor:
            x: Tensor = model.basis(distance)
            for network in networks:
                x = network(x)
                if activated:
                    x = model.embedding.activation(x)
            config = model.config
            weight = cosine_cutoff(distance, config.cutoff_lower, config.cutoff_upper)
            return x * weight[:, None]

        return evaluate

    layers = [function(layer.radial, activated=True) for layer in model.interactions]
    return [function([model.embedding.radial], activated=False), *layers]


def tabulate(model: TensorNet, tolerances: tuple[float, float]) -> RadialTables:
    """Tabulate the radial networks of a model.

    Parameters
    ----------
    model : TensorNet
        In float64.
    tolerances : (float, float)
        Allowed errors of values and slopes, relative to the largest value and slope of each table.

    Returns
    -------
    RadialTables
        In float64, on the model's device.

    Raises
    ------
    UnsupportedModelError
        If no table of reasonable size is within the tolerances.

    Examples
    --------
    >>> from mlff_triton import load_model
    >>> tabulate(load_model("default").double(), (1e-6, 1e-5)).embedding.shape[1:]
    torch.Size([3, 3, 64])
    """
    functions = radial_functions(model)
    with torch.no_grad():
        positions, errors = _place_knots(functions, model.config, tolerances, model.std.device)
        tables = [_table(f, positions) for f in functions]
        return RadialTables(
            Knots(positions, _first_intervals(positions)),
            tables[0],
            tables[1:],
            *_self_factors(functions, model),
            errors,
        )


def _place_knots(
    functions: list[RadialFunction],
    config: TensorNetConfig,
    tolerances: tuple[float, float],
    device: torch.device,
) -> tuple[Tensor, tuple[float, float]]:
    """Return knots in Å, and the largest errors between them.

    Halving leaves intervals up to twice as fine as necessary. The ratio of their errors to the
    tolerances tells how dense knots have to be, and knots are placed again with this density.
    """
    # Plain Bessel functions divide by the distance. A lower cutoff causes a kink with zeros below.
    lower = CLOSE / 2 if config.rbf_type == "bessel" else config.cutoff_lower
    ends, count = (lower, config.cutoff_upper), COARSEST * SCALE_SAMPLES + 1
    samples = torch.linspace(*ends, count, dtype=torch.float64, device=device)
    scales = [_scales(f, samples[samples > CLOSE]) for f in functions]
    noise = ROUNDING * max(float(value / slope) for value, slope in scales)

    def judge(start: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors in intervals and their ratios to the allowed errors, [n, 2] each."""
        errors = [_interval_errors(f, start, width) for f in functions]
        error = torch.stack([e / scale for e, scale in zip(errors, scales, strict=True)]).amax(0)
        allowed = torch.full_like(error, tolerances[0])
        allowed[:, 1] = (noise / width).clamp(min=tolerances[1])
        allowed[_close(start, width)] *= CLOSE_TOLERANCE
        return error, error / allowed

    start, width, excess = _bisect(judge, samples[::SCALE_SAMPLES])
    needed = (excess ** excess.new_tensor(EXPONENTS)).amax(1).clamp(min=0.5)
    close = _close(start, width)
    for margin in MARGINS:
        parts = [_spread(start[p], width[p], margin * needed[p]) for p in (close, ~close)]
        positions = torch.cat([*parts, samples[-1:]])
        error, excess = judge(positions[:-1], positions.diff())
        if (excess <= 1).all():
            break
    else:
        positions = torch.cat([start, samples[-1:]])
        error, _ = judge(start, width)
    worst = error[~_close(positions[:-1], positions.diff())].amax(0).tolist()
    return positions, (worst[0], worst[1])


def _close(start: Tensor, width: Tensor) -> Tensor:
    """Return True for intervals below the distance of any two nuclei, bool [n]."""
    return start + width <= CLOSE


def _bisect(
    judge: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], coarse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Halve intervals between coarse knots until the errors in all of them are allowed.

    Returns
    -------
    start, width : float64 [n]
        The intervals, in ascending order.
    excess : float64 [n, 2]
        Ratios of their errors to those allowed.
    """
    start, width = coarse[:-1], coarse.diff()
    accepted = []
    for _ in range(1 + HALVINGS):
        excess = judge(start, width)[1]
        fine = (excess <= 1).all(1)
        accepted.append((start[fine], width[fine], excess[fine]))
        start, width = start[~fine], width[~fine] / 2
        if not len(start):
            found = [torch.cat(parts) for parts in zip(*accepted, strict=True)]
            order = found[0].argsort()
            return found[0][order], found[1][order], found[2][order]
        start, width = torch.cat([start, start + width]), torch.cat([width, width])
    raise UnsupportedModelError(
        "the radial networks change too fast to be tabulated near "
        f"{float(start[0]):.2f} Å: use backend='exact'"
    )


def _spread(start: Tensor, width: Tensor, needed: Tensor) -> Tensor:
    """Spread knots over adjoining intervals, as many or as few as needed, without the end."""
    if not len(start):
        return start
    ends = np.append(start.cpu(), (start + width)[-1:].cpu())
    total = np.append(0.0, needed.cumsum(0).cpu())
    levels = np.linspace(0.0, total[-1], math.ceil(total[-1]), endpoint=False)
    return torch.from_numpy(np.interp(levels, total, ends)).to(start)


def _scales(function: RadialFunction, distance: Tensor) -> Tensor:
    """Return the largest value and slope, float64 [2]."""
    value, slope = _differentiate(function, distance)
    return torch.stack([value.abs().max(), slope.abs().max()]).clamp(min=1e-300)


def _interval_errors(function: RadialFunction, start: Tensor, width: Tensor) -> Tensor:
    """Return the largest errors of value and slope in each interval, float64 [n, 2]."""
    fractions = start.new_tensor(SAMPLES)
    size = CHUNK // (len(SAMPLES) + 2)
    chunks = []
    for part, span in zip(start.split(size), width.split(size), strict=True):
        table = _table(function, torch.stack([part, part + span], dim=1).flatten())
        t = fractions.repeat(len(part))
        interval = 2 * torch.arange(len(part), device=start.device)
        interval = interval.repeat_interleave(len(fractions))
        exact = _differentiate(function, (part[:, None] + span[:, None] * fractions).flatten())
        h = span.repeat_interleave(len(fractions))
        found = look_up(table, interval, t, h), look_up_slope(table, interval, t, h)
        errors = [
            (f.transpose(0, 1).flatten(1) - e).abs().amax(1).unflatten(0, (-1, len(fractions)))
            for f, e in zip(found, exact, strict=True)
        ]
        chunks.append(torch.stack([error.amax(1) for error in errors], dim=1))
    return torch.cat(chunks)


def _table(function: RadialFunction, positions: Tensor) -> Tensor:
    """Return the table [K + 1, 3, 3, F] with knots at float64 ``positions``."""
    parts = [_differentiate(function, p) for p in positions.split(CHUNK)]
    value, slope = (torch.cat(arrays) for arrays in zip(*parts, strict=True))
    secant = torch.zeros_like(value)
    secant[:-1] = value.diff(dim=0) / positions.diff()[:, None]
    table: Tensor = torch.stack([value, slope, secant], dim=1).unflatten(2, (3, -1))
    return table


def _differentiate(function: RadialFunction, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and slopes, float64 [n, 3 F] each."""
    tangent = torch.ones_like(distance)
    value, slope = torch.func.jvp(function, (distance,), (tangent,))  # type: ignore[misc]
    return value, slope


def _first_intervals(positions: Tensor) -> Tensor:
    """Return the first interval in each equal cell, see `Knots`, int32."""
    count = math.ceil(float((positions[-1] - positions[0]) / positions.diff().min())) + 1
    cells = torch.linspace(0, 1, count + 1, dtype=torch.float64, device=positions.device)[:-1]
    starts = positions[0] + cells * (positions[-1] - positions[0])
    return torch.searchsorted(positions, starts, right=True).int() - 1


def _self_factors(functions: list[RadialFunction], model: TensorNet) -> tuple[Tensor, list[Tensor]]:
    if not model.config.self_loops:
        zeros = model.std.new_zeros(3, model.config.hidden_channels)
        return zeros[0], [zeros] * len(model.layers)
    origin = model.std.new_zeros(1)
    embedding, *layers = [f(origin).unflatten(1, (3, -1))[0] for f in functions]
    return embedding[0].contiguous(), layers
