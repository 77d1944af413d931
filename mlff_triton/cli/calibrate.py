"""The command ``mlff-triton calibrate``: times of every backend on the machine at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mlff_triton.errors import BackendError

if TYPE_CHECKING:
    import torch

    from mlff_triton.engine.calibration import Point
    from mlff_triton.engine.costs import Cost
    from mlff_triton.model.tensornet import TensorNet


def calibrate(
    model: Annotated[
        str, typer.Option(help="Shipped name or checkpoint; of an ensemble, its first member.")
    ] = "default",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    out: Annotated[Path | None, typer.Option(help="File to write instead of the cache.")] = None,
) -> None:
    """Measure every backend that can serve a model here; from then on the fastest is taken.

    It holds for all models of as many channels and layers, in this dtype and with these versions.
    """
    from mlff_triton._common.devices import find_device, find_dtype
    from mlff_triton.checkpoints import load_model
    from mlff_triton.engine.calibration import fastest_by_size, fit
    from mlff_triton.engine.costs import Costs, Place, keep
    from mlff_triton.model.prediction import Ensemble
    from mlff_triton.model.tensornet import TensorNet

    place, loaded = find_device(device), load_model(model)
    member = loaded.members[0] if isinstance(loaded, Ensemble) else loaded
    assert isinstance(member, TensorNet)
    where = Place.of(member.config, place, find_dtype(dtype))
    console = Console(markup=False, highlight=False, soft_wrap=True)
    console.print(f"{model} in {dtype} on {where.device}:")
    points: dict[str, list[Point]] = {}
    for point in _measured(console, member, place, dtype):
        points.setdefault(point.backend, []).append(point)
    if not points:
        raise BackendError(f"the memory of {place} is too small for any step: use device='cpu'")
    backends = {backend: fit(some) for backend, some in points.items()}
    console.print(_times(points), _costs(backends))
    max_atoms = max(point.atoms for some in points.values() for point in some)
    ranges = fastest_by_size(backends, member.cutoff, max_atoms)
    console.print(f"fastest: {_in_words(ranges)}")
    today = datetime.now(timezone.utc).date().isoformat()
    path = keep(Costs(where, today, backends), out)
    console.print(f"wrote {path}")


def _measured(
    console: Console, model: TensorNet, device: torch.device, dtype: str
) -> Iterator[Point]:
    """Points of all backends that can serve, with a bar on a terminal."""
    from mlff_triton._common.devices import find_dtype
    from mlff_triton.engine.calibration import SIZES, measure_backend
    from mlff_triton.engine.dispatch import candidates, eligible

    backends = eligible(candidates([model], device, find_dtype(dtype)), device)
    steps = len(SIZES[device.type])
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=steps * len(backends))
        for k, backend in enumerate(backends):
            progress.update(task, description=backend, completed=k * steps)
            for point in measure_backend(model, device, dtype, backend):
                progress.advance(task)
                yield point
        progress.update(task, completed=steps * len(backends))


def _times(points: dict[str, list[Point]]) -> Table:
    """What was measured: a row a size, a column a backend."""
    table = Table("atoms", "edges", *points, title="Time of a step, ms")
    found = {(p.atoms, p.edges, p.backend): p.ms for some in points.values() for p in some}
    for atoms, edges in sorted({size[:2] for size in found}):
        times = [found.get((atoms, edges, backend)) for backend in points]
        cells = ["-" if ms is None else f"{ms:.3g}" for ms in times]
        table.add_row(str(atoms), str(edges), *cells)
    return table


def _costs(backends: dict[str, Cost]) -> Table:
    """What fits the times best."""
    table = Table("backend", "launch, ms", "atom, µs", "edge, µs", "worst misfit", title="Costs")
    for backend, cost in backends.items():
        numbers = (cost.launch, cost.per_atom * 1e3, cost.per_edge * 1e3)
        table.add_row(backend, *(f"{x:.3g}" for x in numbers), f"{cost.misfit:.0%}")
    return table


def _in_words(ranges: Sequence[tuple[int, str]]) -> str:
    """Say which backend is fastest up to which size."""
    parts = [f"{name} below {end} atoms" for (_, name), (end, _) in pairwise(ranges)]
    rest = "above" if parts else "at every size"
    return ", ".join([*parts, f"{ranges[-1][1]} {rest}"])
