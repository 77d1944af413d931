"""``python -m benchmarks.engine.costs``: the shipped costs, from the committed results.

The numbers are times of the GPU alone. Implementations that were measured on fewer than three
sizes have no costs.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from pathlib import Path

from benchmarks.__main__ import RESULTS
from benchmarks.lab.schema import PASS, Row, read_rows
from benchmarks.systems import models
from mlff_triton.engine.calibration import Point, fit
from mlff_triton.engine.costs import SHIPPED, Costs, Place, software, write

BENCHES = {"step": "random", "shipped": "shipped"}  # and the model of each
BACKENDS = {"engine": "triton-graph", "exact": "exact"}  # by the names of implementations
SIZES = 3


def fitted(folder: Path = RESULTS) -> list[Costs]:
    """Costs of each model on each GPU."""
    found = []
    for bench, model in BENCHES.items():
        rows = [r for r in read_rows(folder / f"{bench}.csv") if r.gate == PASS]
        rows = [r for r in rows if r.impl in BACKENDS]
        for _, group in groupby(sorted(rows, key=attrgetter("gpu")), attrgetter("gpu")):
            costs = _costs(model, list(group))
            if costs.backends:
                found.append(costs)
    return found


def _costs(model: str, rows: list[Row]) -> Costs:
    """Costs of one model on one GPU."""
    points: dict[str, list[Point]] = {}
    for row in rows:
        backend = BACKENDS[row.impl]
        points.setdefault(backend, []).append(Point(backend, row.atoms, row.edges, row.ms_p50))
    newest = max(rows, key=attrgetter("date"))
    config = models.model(model).config
    place = Place(
        newest.gpu,
        config.hidden_channels,
        config.num_layers,
        "float32",
        software(newest.torch, newest.triton, newest.commit),
    )
    enough = {name: fit(some) for name, some in points.items() if len(some) >= SIZES}
    return Costs(place, newest.date, enough)


if __name__ == "__main__":
    write(SHIPPED, fitted())
