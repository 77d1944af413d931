"""Radial networks as tables: exact at the knots, cubic in between, with a measured error.

In TensorNet, the networks of edges depend on the distance alone. They return F factors for each of
the three parts, in the embedding and in every layer. Each factor becomes a cubic Hermite spline,
which interpolates values and slopes at its knots. The energy thus has a continuous gradient, and
forces are the exact derivatives of the interpolated energy. A row of a table holds the value and
the slope at a knot, and the secant to the next knot; see
`mlff_triton.kernels.common.reference.radial_table`.

All tables of a model share their knots, which are as dense as the functions and the requested error
require. With the usual bases, only about a hundred knots lie beyond 2.5 Å, where nearly all
neighbors are, and these rows stay in a GPU's cache.

Tables are computed on the CPU by a single thread. Their bits therefore do not depend on the number
of threads, and several programs that share the cores do not wait for each other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mlff_triton._common import cache
from mlff_triton._common.timing import device_name
from mlff_triton.engine.radial_networks import CHUNK, evaluate, radial_functions
from mlff_triton.errors import UnsupportedModelError
from mlff_triton.kernels.common.reference.radial_table import look_up, look_up_slope
from mlff_triton.kernels.types.edges import Knots
from mlff_triton.model.tensornet import TensorNet

TOLERANCES = {
    # Largest errors of values and slopes, relative to the largest value and slope. The largest ones
    # occur at short distances and are ten times those of most neighbors, so the tolerance of
    # float32 is below its precision. Slopes of float64 allow for forces that nearly cancel.
    torch.float32: (1e-8, 3.5e-8),
    torch.float64: (2e-12, 2.5e-11),
}
CLOSE = 0.5  # Å; no two nuclei come closer, and the bases are steepest there
CLOSE_TOLERANCE = 1000.0  # factor of the tolerances below this distance
STEP = 0.005  # Å between samples that tell how dense knots have to be
MARGIN = 1.05  # density of knots, relative to this estimate
FEWEST = 4  # intervals on either side of `CLOSE`
NARROWEST = 2.0**-20  # width of an interval, relative to the range of the table
SAMPLES = (0.21, 0.5, 0.79)  # fractions of an interval at which errors of slope and value peak
ROUNDING = 4e-15  # error of values in float64, which a secant divides by the width of an interval
VERSION = 1  # of cached knots, to be increased when they are placed differently

_SETTING_THREADS = Lock()


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
        Tables of the factors of each layer, in the same form.
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


def tabulate(model: TensorNet, tolerances: tuple[float, float]) -> RadialTables:
    """Tabulate the radial networks of a model.

    The knots are kept in the user's cache folder, see `mlff_triton._common.cache`. Cached knots
    give the same bits as new ones.

    Parameters
    ----------
    model : TensorNet
        In float64, on the CPU.
    tolerances : (float, float)
        Allowed errors of values and slopes, relative to the largest value and slope of each table.

    Returns
    -------
    RadialTables
        In float64, on the CPU.

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
    positions, errors = find_knots(model, tolerances)
    with torch.no_grad(), _one_thread():
        embedding, *layers = (_table(rows, positions) for rows in evaluate(model, positions))
        return RadialTables(
            Knots(positions, _first_intervals(positions)),
            embedding,
            layers,
            *_self_factors(model),
            errors,
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let PyTorch use one thread in the block; only one caller enters at a time."""
    with _SETTING_THREADS:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def find_knots(
    model: TensorNet, tolerances: tuple[float, float]
) -> tuple[Tensor, tuple[float, float]]:
    """Return knots in Å, and the largest errors between them, from the cache if it has them.

    Arguments and errors are those of `tabulate`.
    """
    key = _key(model, tolerances)
    stored = cache.read("knots", key)
    if stored is None:
        with torch.no_grad(), _one_thread():
            positions, errors = _place_knots(model, tolerances)
        cache.write("knots", key, np.append(errors, positions).tobytes())
        return positions, errors
    value, slope, *_ = values = np.frombuffer(stored)
    return torch.from_numpy(values[2:].copy()), (float(value), float(slope))


def _key(model: TensorNet, tolerances: tuple[float, float]) -> str:
    """Return a hash of everything that the bits of the knots depend on."""
    networks = nn.ModuleList([layer.radial for layer in model.interactions])
    modules = [model.basis, model.embedding.radial, networks]
    names = [type(module).__qualname__ for module in modules]
    software = VERSION, torch.__version__, device_name("cpu")  # which round differently
    digest = hashlib.sha256(repr((software, tolerances, model.config, names)).encode())
    for module in modules:
        for tensor in module.state_dict().values():
            digest.update(tensor.contiguous().numpy())
    return digest.hexdigest()


def _place_knots(
    model: TensorNet, tolerances: tuple[float, float]
) -> tuple[Tensor, tuple[float, float]]:
    """Return knots in Å, and the largest errors between them.

    Fourth derivatives tell how dense knots have to be. The errors are then measured in every
    interval, and intervals with larger errors than allowed are halved.
    """
    config = model.config
    # Plain Bessel functions divide by the distance. A lower cutoff causes a kink with zeros below.
    lower = CLOSE / 2 if config.rbf_type == "bessel" else config.cutoff_lower
    far = _samples(max(lower, CLOSE), config.cutoff_upper)
    rows = evaluate(model, far)
    limits = _Limits.of(rows, tolerances)
    parts = [_spread(far, rows, limits), far[-1:]]
    if lower < CLOSE:
        near = _samples(lower, CLOSE)
        parts.insert(0, _spread(near, evaluate(model, near), limits))
    return _refine(model, limits, torch.cat(parts))


@dataclass(frozen=True)
class _Limits:
    """Errors allowed in an interval.

    Attributes
    ----------
    scale : [T, 2]
        Largest value and slope of each table.
    tolerances : (float, float)
        Allowed errors of values and slopes, relative to these.
    noise : float
        Error of secants due to rounding, times the width of the interval, relative to these.
    """

    scale: Tensor
    tolerances: tuple[float, float]
    noise: float

    @classmethod
    def of(cls, rows: Tensor, tolerances: tuple[float, float]) -> _Limits:
        """Return the limits for functions with samples [T, n, 2, 3, F]."""
        scale = rows.abs().amax((1, 3, 4)).clamp(min=1e-300)
        return cls(scale, tolerances, ROUNDING * float((scale[:, 0] / scale[:, 1]).max()))

    def relative(self, errors: Tensor) -> Tensor:
        """Return the largest relative errors [n, 2], given the errors of all tables, [T, n, 2]."""
        return (errors / self.scale[:, None]).amax(0)

    def allowed(self, start: Tensor, width: Tensor) -> Tensor:
        """Return the allowed relative errors of value and slope in intervals, [n, 2]."""
        value, slope = self.tolerances
        slopes = (self.noise / width).clamp(min=slope)
        allowed = torch.stack([torch.full_like(slopes, value), slopes], dim=1)
        return torch.where(_close(start, width)[:, None], CLOSE_TOLERANCE * allowed, allowed)

    def widths(self, distance: Tensor, fourth: Tensor) -> Tensor:
        """Return the widest intervals [n] around distances with fourth derivatives [T, n].

        In an interval of width h, the error of values is at most ``h^4 f'''' / 384``, and that of
        slopes ``h^3 f'''' sqrt(3) / 216``.
        """
        value, slope = self.relative(fourth[:, :, None]).clamp(min=1e-30).T
        looser = 1 + (CLOSE_TOLERANCE - 1) * (distance < CLOSE)
        value = looser / value * 384
        slope = looser / slope * (216 / math.sqrt(3))
        of_value = (self.tolerances[0] * value) ** (1 / 4)
        of_slope = (self.tolerances[1] * slope) ** (1 / 3)
        widths: Tensor = of_value.minimum(of_slope.maximum((self.noise * slope) ** (1 / 4)))
        return widths


def _samples(lower: float, upper: float) -> Tensor:
    """Return equidistant distances for estimating the density of knots, float64 [n]."""
    return torch.linspace(lower, upper, 5 + math.ceil((upper - lower) / STEP), dtype=torch.float64)


def _spread(distance: Tensor, rows: Tensor, limits: _Limits) -> Tensor:
    """Spread knots as densely as needed between equidistant samples, without the last sample.

    Parameters
    ----------
    distance : float64 [n]
        The samples.
    rows : float64 [T, n, 2, 3, F]
        Values and slopes.
    limits : _Limits
        Allowed errors.
    """
    step = float(distance[1] - distance[0])
    value, slope = rows.unbind(2)
    change = (slope[:, 2:] - slope[:, :-2]) * (step / 2) - value.diff(n=2, dim=1)
    fourth = change.abs().amax((2, 3)) * (12 / step**4)  # of a quartic through three samples
    highest = functional.max_pool1d(fourth, 3, stride=1, padding=1)
    needed = MARGIN / limits.widths(distance[1:-1], highest)
    density = functional.pad(needed[None], (1, 1), mode="replicate")[0]
    density = density.clamp(min=FEWEST / float(distance[-1] - distance[0]))
    total = functional.pad((density[1:] + density[:-1]).cumsum(0) * (step / 2), (1, 0)).numpy()
    levels = np.linspace(0.0, total[-1], math.ceil(total[-1]), endpoint=False)
    return torch.from_numpy(np.interp(levels, total, distance.numpy()))


def _refine(
    model: TensorNet, limits: _Limits, positions: Tensor
) -> tuple[Tensor, tuple[float, float]]:
    """Halve intervals between knots until the errors in all of them are allowed."""
    start, width = positions[:-1], positions.diff()
    narrowest = NARROWEST * float(positions[-1] - positions[0])
    accepted = []
    while len(start):
        error = _interval_errors(model, limits, start, width)
        fine = (error <= limits.allowed(start, width)).all(1)
        accepted.append((start[fine], error[fine], _close(start, width)[fine]))
        start, width = start[~fine], width[~fine] / 2
        if (width < narrowest).any():
            raise UnsupportedModelError(
                "the radial networks change too fast to be tabulated near "
                f"{float(start[0]):.2f} Å: use backend='exact'"
            )
        start, width = torch.cat([start, start + width]), torch.cat([width, width])
    starts, errors, close = (torch.cat(parts) for parts in zip(*accepted, strict=True))
    value, slope = errors[~close].amax(0).tolist()
    return torch.cat([starts.sort().values, positions[-1:]]), (value, slope)


def _close(start: Tensor, width: Tensor) -> Tensor:
    """Return True for intervals below the distance of any two nuclei, bool [n]."""
    return start + width / 2 < CLOSE  # which is a knot


def _interval_errors(model: TensorNet, limits: _Limits, start: Tensor, width: Tensor) -> Tensor:
    """Return the largest relative errors of value and slope in each interval, float64 [n, 2]."""
    fractions = start.new_tensor([0.0, *SAMPLES, 1.0])
    weights = torch.cat(_blending_weights(fractions[1:-1]))
    size = CHUNK // len(fractions)
    chunks = []
    for part, h in zip(start.split(size), width[:, None, None].split(size), strict=True):
        distance = part[:, None] + h[:, 0] * fractions
        rows = evaluate(model, distance.flatten()).flatten(3).unflatten(1, distance.shape)
        value, slope = rows.unbind(3)  # [T, n, 5, 3 F]
        secant = (value[:, :, -1:] - value[:, :, :1]) / h
        blend = weights @ torch.cat([slope[:, :, :1], secant, slope[:, :, -1:]], dim=2)
        of_value, of_slope = blend.tensor_split(2, dim=2)
        errors = value[:, :, :1] + h * of_value - value[:, :, 1:-1], of_slope - slope[:, :, 1:-1]
        chunks.append(limits.relative(torch.stack([e.abs().amax((2, 3)) for e in errors], 2)))
    return torch.cat(chunks)


def _blending_weights(fraction: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights, [n, 3] each, of the first slope, the secant and the last slope.

    They serve `look_up`, less the first value and per Å of width, and `look_up_slope`.
    """
    table = fraction.new_zeros(2, 3, 3, 3)  # of three functions
    table[0, 1, :, 0] = table[0, 2, :, 1] = table[1, 1, :, 2] = 1.0
    where = torch.zeros_like(fraction).int(), fraction, torch.ones_like(fraction)
    return look_up(table, *where)[0], look_up_slope(table, *where)[0]


def _table(rows: Tensor, positions: Tensor) -> Tensor:
    """Return the table [K + 1, 3, 3, F] of values and slopes [K + 1, 2, 3, F] at the knots."""
    secant = torch.zeros_like(rows[:, :1])
    secant[:-1, 0] = rows[:, 0].diff(dim=0) / positions.diff()[:, None, None]
    return torch.cat([rows, secant], dim=1)


def _first_intervals(positions: Tensor) -> Tensor:
    """Return the first interval in each equal cell, see `Knots`, int32."""
    count = math.ceil(float((positions[-1] - positions[0]) / positions.diff().min())) + 1
    cells = torch.linspace(0, 1, count + 1, dtype=torch.float64)[:-1]
    starts = positions[0] + cells * (positions[-1] - positions[0])
    return torch.searchsorted(positions, starts, right=True).int() - 1


def _self_factors(model: TensorNet) -> tuple[Tensor, list[Tensor]]:
    """Return the factors of the embedding [F] and of each layer [3, F] at distance 0."""
    if not model.config.self_loops:
        zeros = model.std.new_zeros(3, model.config.hidden_channels)
        return zeros[0], [zeros] * len(model.layers)
    origin = model.std.new_zeros(1)
    embedding, *layers = [f(origin).unflatten(1, (3, -1))[0] for f in radial_functions(model)]
    return embedding[0].contiguous(), layers
