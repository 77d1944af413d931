"""``python -m benchmarks.engine.costs``: fit the shipped costs to the committed results.

The times are those of the GPU alone. An implementation needs three sizes to get costs.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from pathlib import Path

from benchmarks.lab.schema import FAIL, RESULTS, Row, read_rows
from benchmarks.systems import models
from mlff_triton.engine.calibration import Point, fit
from mlff_triton.engine.costs import SHIPPED, Costs, Target, architecture_of, software, write

MODELS = {"step": "random", "charged": "charged", "shipped": "shipped"}  # bench -> model
BACKENDS = {"engine": "triton-graph", "exact": "exact"}  # implementation -> backend
MIN_SIZES = 3


def fitted(folder: Path = RESULTS) -> list[Costs]:
    """Return the costs of each model on each GPU."""
    found = []
    for bench, model in MODELS.items():
        rows = [r for r in read_rows(folder / f"{bench}.csv") if r.gate != FAIL]
        # Cases that are named by more than their size, as those with PME, are of other models.
        rows = [r for r in rows if r.impl in BACKENDS and r.case.isdigit()]
        for _, group in groupby(sorted(rows, key=attrgetter("gpu")), attrgetter("gpu")):
            costs = _costs(model, list(group))
            if costs.backends:
                found.append(costs)
    return found


def _costs(model: str, rows: list[Row]) -> Costs:
    """Return the costs of one model on one GPU."""
    points: dict[str, list[Point]] = {}
    for row in rows:
        backend = BACKENDS[row.impl]
        points.setdefault(backend, []).append(Point(backend, row.atoms, row.edges, row.ms_p50))
    newest = max(rows, key=attrgetter("date"))
    config = models.model(model).config
    target = Target(
        newest.gpu,
        architecture_of(config),
        config.hidden_channels,
        config.num_layers,
        "float32",
        software(newest.torch, newest.triton, newest.commit),
    )
    fits = {name: fit(some) for name, some in points.items() if len(some) >= MIN_SIZES}
    return Costs(target, newest.date, fits)


if __name__ == "__main__":
    write(SHIPPED, fitted())
